"""Trainings of frameworks on a GPU: each survives kills bit for bit, what a recovery takes, what protection costs.

    scripts/nccl-shared-gpu out/libnccl.so.2
    export LD_PRELOAD=$PWD/out/libnccl.so.2 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_NCHANNELS=8
    python benchmarks/frameworks_on_gpu.py --framework transformers --framework megatron --json out/frameworks.json

Ranks are nodes of their own and share the GPU. A large model is trained three times: under torchrun, protected and
captured in every step (the ratio of their median steps is the overhead; the copies' holders are on the same machine),
and with nodes killed in mid-step, each once its spare is warm. Net recovery is the time from the kill until both ranks
have done a new step, minus a median step of the run under torchrun.

Small models of further layouts are trained under torchrun, twice (without determinism there is nothing to compare), and
protected, once for each moment, with a node killed there.

`--alone` trains with one rank that has the GPU for itself, and captures every step in every other stretch of 10 steps:
the ratio is of captured stretches to their neighbours, so a machine that gets slower does not show. Timers of Megatron
are off, as they are by default, or wait for the whole device at each of their marks.

NCCL gives ranks that share a GPU 64 channels per communicator, as no GPU of a cluster gets: connecting takes five times
as long as with 8. NCCL_MAX_NCHANNELS sees to a usual number.
"""

from __future__ import annotations

import argparse
import itertools
import operator
import os
import socket
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from output import give_out
from pairs import interval_95, neighbour_ratios

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.demo.trial import NodeKill, Results, differences, kill_in_mid_step
from deadpool.errors import JobFailed
from deadpool_lab.workload.run import WorkloadTrial

SCRIPTS = Path(__file__).parents[1] / "tests" / "e2e"
LIMIT_S = 240.0
WARM_UP_STEPS = 5
STRETCH, STRETCHES = 10, 24
DEVICE = os.environ.get("FRAMEWORKS_DEVICE", "cuda")  # cpu: to try this file, not to measure
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@dataclass(frozen=True, slots=True)
class Framework:
    script: Path
    arguments: tuple[str, ...]
    layouts: dict[str, tuple[int, tuple[str, ...]]]  # how many ranks, and the script's arguments
    moments: dict[str, str]
    large: tuple[str, ...]  # two ranks, with steps that last


FRAMEWORKS = {
    "transformers": Framework(
        SCRIPTS / "trainer_script.py",
        ("--device", DEVICE),
        {"ddp": (2, ()), "fsdp2": (2, ("--fsdp",))},
        {
            "backward": "at=backward step=8 node=n1",
            "update": "at=optimizer step=12 node=n0",
            "epoch's edge": "at=forward step=11 rank=1",
        },
        ("--scale", "32", "--rows", "3200", "--length", "1024", "--batch", "16", "--save-every", "1000"),
    ),
    "megatron": Framework(
        SCRIPTS / "megatron_script.py",
        ("--device", DEVICE, "--backend", "nccl" if DEVICE == "cuda" else "gloo"),
        {
            "dp, distributed optimizer, overlaps, bf16": (
                2,
                ("--distributed-optimizer", "--overlap", "--precision", "bf16"),
            ),
            "tp x pp": (4, ("--tensor", "2", "--pipeline", "2")),
            "ep x dp, distributed optimizer": (4, ("--expert", "2", "--experts", "4", "--distributed-optimizer")),
        },
        {"backward": "at=backward step=3 node=n0", "update": "at=optimizer step=4 node=n1"},
        (
            *("--steps", "150", "--width", "1024", "--sequence", "1024", "--micro-batch", "8", "--microbatches", "4"),
            *("--distributed-optimizer", "--overlap", "--precision", "bf16"),
        ),
    ),
}


def run_plain(framework: Framework, ranks: int, arguments: tuple[str, ...], folder: Path) -> Results:
    """Under torchrun, a node per rank: several ranks of one node would look for a GPU each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(ranks), "--nproc-per-node", "1"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    own = [str(framework.script), "--out", str(folder), *framework.arguments, *arguments]
    logs = [(folder / f"torchrun{rank}.log").open("w+") for rank in range(ranks)]
    nodes = [
        subprocess.Popen(
            [*command, "--node-rank", str(rank), *own],
            env={**os.environ, **ENVIRONMENT},
            stdout=logs[rank],
            stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]
    try:
        codes = [node.wait(LIMIT_S) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    if any(codes):
        raise JobFailed("\n".join(Path(log.name).read_text()[-3000:] for log in logs))
    return Results.read(folder)


def protected(
    framework: Framework, ranks: int, arguments: tuple[str, ...], folder: Path, **given: Any
) -> WorkloadTrial:
    config = JobConfig(nodes=ranks, overhead_budget=0.0, **given).checked()
    return WorkloadTrial(
        config,
        [*framework.arguments, *arguments],
        folder,
        deadline_s=LIMIT_S,
        script=framework.script,
        environment=ENVIRONMENT,
    )


def kill_at_each_moment(name: str, layouts: str) -> list[dict[str, Any]]:
    framework, cells = FRAMEWORKS[name], []
    for layout, (ranks, arguments) in framework.layouts.items():
        if layouts not in layout:
            continue
        with temporary_folder("deadpool-frameworks-") as folder:
            plain = run_plain(framework, ranks, arguments, folder / "plain")
            again = differences(plain, run_plain(framework, ranks, arguments, folder / "again"))
            for moment, fault in framework.moments.items():
                cell: dict[str, Any] = {"layout": layout, "moment": moment, "plain_runs_differ": again}
                trial = protected(framework, ranks, arguments, folder / moment, spares=1, faults=(fault,))
                try:
                    cell["differences"] = differences(plain, trial.run())
                    assert len(trial.recoveries()) == 1, "the node was not killed"
                except (JobFailed, AssertionError) as error:
                    cell["differences"] = [str(error)[-2000:]]
                cells.append(cell)
                print(f"{name}, {layout}, {moment}: {cell}", flush=True)
    return cells


def train_large(name: str, kills: int) -> dict[str, Any]:
    """Three runs of the same steps: under torchrun, protected, and protected with nodes killed."""
    framework = FRAMEWORKS[name]
    with temporary_folder("deadpool-frameworks-") as folder:
        plain = run_plain(framework, 2, framework.large, folder / "plain")
        calm = protected(framework, 2, framework.large, folder / "protected")
        undisturbed = calm.run()
        step_s = median_step_s(plain)
        figures = {
            "plain_step_s": step_s,
            "overhead_ratio": median_step_s(undisturbed) / step_s,
            "captures_missed": sum(event["what"] == "capture_missed" for event in calm.events()),
            "snapshot_bytes": max(e["bytes"] for e in calm.events() if e["what"] == "slots_allocated"),
            "differences_undisturbed": differences(plain, undisturbed),
        }
        print(f"{name}: {figures}", flush=True)
        trial = protected(framework, 2, framework.large, folder / "disturbed", spares=1, rehearsals=2)
        killed: list[tuple[str, float]] = []
        disturbed = trial.run(lambda t: killed.extend(kill_nodes(t, kills, step_s)))
        each = [
            NodeKill(victim=victim, killed_at=at, recovery=recovery)
            for (victim, at), recovery in zip(killed, trial.recoveries(), strict=True)
        ]
    return figures | {
        "differences": differences(plain, disturbed),
        "net_recovery_s": [kill.first_step_s() - step_s for kill in each],
        "phases_s": [kill.phases_s() for kill in each],
        "steps_redone": [kill.recovery.lost_steps for kill in each],
    }


def train_alone(timing_level: int) -> dict[str, Any]:
    """With Megatron, and without holders: what a capture itself costs."""
    framework = FRAMEWORKS["megatron"]
    own = ("--steps", str(STRETCH * STRETCHES), "--capture-turns", str(STRETCH), "--timing-level", str(timing_level))
    with temporary_folder("deadpool-frameworks-") as folder:
        trial = protected(framework, 1, (*framework.large, *own), folder, holders=0)
        ends = [each.ended for each in trial.run().steps[0]]
    stretches = range(2 * STRETCH, len(ends), STRETCH)  # the first one of either kind is left out
    is_captured = [start // STRETCH % 2 == 1 for start in stretches]
    # The first two steps after a switch are left out.
    steps_s = [statistics.median(map(operator.sub, ends[s + 2 : s + STRETCH], ends[s + 1 :])) for s in stretches]
    ratios = neighbour_ratios(is_captured, steps_s)
    return {
        "timing_level": timing_level,
        "ratio": statistics.median(ratios),
        "ratio_95": list(interval_95(ratios)),
        "uncaptured_step_s": statistics.median(s for s, is_on in zip(steps_s, is_captured, strict=True) if not is_on),
    }


def kill_nodes(trial: WorkloadTrial, kills: int, step_s: float) -> list[tuple[str, float]]:
    """Each in mid-step, once the spare has rehearsed both ranks."""
    seated, done = ["n0", "n1"], []
    for index in range(kills):
        victim, seated[index % 2] = seated[index % 2], f"n{2 + index}"
        done.append((victim, kill_in_mid_step(trial, victim, step_s, rehearsals=2 * (index + 1))))
        print(f"kill {index + 1} of {kills}: {victim}", flush=True)
        trial.await_event("resumed", 2 * (index + 1))
        if index + 1 < kills:
            trial.job.add_node(f"n{3 + index}", spare=True)
    return done


def median_step_s(results: Results) -> float:
    ends = [each.ended for each in results.steps[0]][WARM_UP_STEPS:]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", action="append", choices=list(FRAMEWORKS), help="default: all")
    parser.add_argument("--kills", type=int, default=2, help="of nodes in the large training; 0 leaves it out")
    parser.add_argument("--layouts", default="", help="of small models: those whose names contain this; none: none")
    parser.add_argument("--alone", action="store_true", help="only Megatron with one rank, captured and not")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.alone:
        give_out({"alone": [train_alone(timing_level) for timing_level in (0, 2)]}, args.json)
        return
    figures: dict[str, Any] = {}
    for name in args.framework or FRAMEWORKS:
        figures[name] = train_large(name, args.kills) if args.kills else {}
        give_out(figures, args.json)
        figures[name]["cells"] = kill_at_each_moment(name, args.layouts)
    give_out(figures, args.json)
    if any(differ(each) or any(map(differ, each["cells"])) for each in figures.values()):
        sys.exit("not bit-identical")


def differ(figures: dict[str, Any]) -> bool:
    return any(value for key, value in figures.items() if "differ" in key)


if __name__ == "__main__":
    main()
