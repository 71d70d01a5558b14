"""Measures how long a job stands still when a node dies: SIGKILL to random nodes, compared with an undisturbed run.

    python benchmarks/recovery.py --layout fsdp2 --faults 10 --json out/recovery.json
    LD_PRELOAD=libnccl.so.2 NCCL_MULTI_RANK_GPU_ENABLE=1 python benchmarks/recovery.py --device cuda --faults 10

The job has 4 nodes with one trainer each (two with --layout 3d) and one warm spare node; a new spare joins after each
kill. `first_step_s` is the time from a kill until every rank has done a step that began after it. `net_recovery_s` is
the same minus one median step of the undisturbed run, which comes last and does as many steps. What is known without
that run is reported before it: minus one median step of the disturbed run itself, with nothing compared.

The job has default settings, but for what is given. By default the spare has rehearsed one rank: if another one is
lost, a fresh process is forked and runs the script. With --rehearsals 4 it has rehearsed all four ranks. With
--budget 0 every step is captured, whatever that costs.

With --device cuda ranks and rehearsals share the GPUs of this machine; if there are fewer GPUs than ranks, NCCL must be
told that they may be shared. Trainers get the environment of this command. Unknown options go to the workload, for
example --layers 2.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from output import give_out

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.control.launch.run_dir import RunDir
from deadpool.demo.trial import NodeKill, Results, differences, kill_in_mid_step
from deadpool_lab.workload.layouts import NAMES
from deadpool_lab.workload.run import WorkloadTrial

STEP_LIMIT = 100_000  # never reached
LAST_STEPS = 10  # after the last recovery: the stop must be so far ahead that no rank has reached it
DEADLINE_S = 1800.0
QUIET_STEPS = 3  # between the rehearsal of a new spare and the next kill


def median_and_worst(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "worst": ordered[-1]}


def rehearsed_by(trial: WorkloadTrial, node: str) -> int:
    processes = [event["trainer"] for event in trial.events() if event["what"] == "rehearsed"]
    return sum(name.startswith(f"{node}.") for name in processes)


def disturb(trial: WorkloadTrial, faults: int, seed: int, stop: Path) -> list[tuple[str, float]]:
    """Kills nodes, each once its replacement is warm, and then lets the job end. Returns each node and its time."""
    choose, kills = random.Random(seed), []
    config = trial.config
    seated = [f"n{i}" for i in range(config.nodes)]
    for index in range(faults):
        count = max(1, config.rehearsals) * config.nproc_per_node  # by default further ones may follow
        spare = f"n{config.nodes + index}"
        trial.await_true(lambda: rehearsed_by(trial, spare) >= count, f"the rehearsals of {spare}", timeout_s=180)  # noqa: B023
        trial.await_step(trial.results().newest_step() + QUIET_STEPS)
        position = choose.randrange(len(seated))
        victim, seated[position] = seated[position], f"n{config.nodes + index}"
        kills.append((victim, kill_in_mid_step(trial, victim, trial.results().median_step_s(), 1)))
        print(f"fault {index + 1} of {faults}: killed {victim}", flush=True)
        # The new spare joins only after the recovery, because its start takes CPU time.
        trial.await_event("resumed", (index + 1) * config.nodes * config.nproc_per_node)
        if index + 1 < faults:
            trial.job.add_node(f"n{config.nodes + index + 1}", spare=True)
    stop.write_text(str(trial.results().newest_step() + LAST_STEPS))
    return kills


def report(kills: list[NodeKill], undisturbed: Results | None, disturbed: Results, rehearsals: int) -> dict[str, Any]:
    step_s = (undisturbed or disturbed).median_step_s()
    phases = kills[0].phases_s()
    return {
        "bit_identical": not differences(undisturbed, disturbed) if undisturbed is not None else None,
        "faults": len(kills),
        "rehearsals": rehearsals,
        "median_step_s": step_s,
        "first_step_s": median_and_worst(kill.first_step_s() for kill in kills),
        "net_recovery_s": median_and_worst(kill.first_step_s() - step_s for kill in kills),
        "phases_s": {name: median_and_worst(kill.phases_s()[name] for kill in kills) for name in phases},
        "steps_redone": [kill.recovery.lost_steps for kill in kills],
        "each_net_s": [kill.first_step_s() - step_s for kill in kills],
    }


def keep(run_dir: RunDir, kills: list[tuple[str, float]], folder: Path) -> None:
    """Copies the run folder and adds the kills to its events: the job itself only knows when it noticed them."""
    shutil.copytree(run_dir.path, folder, dirs_exist_ok=True)
    with RunDir(folder).events.open("a") as events:
        for victim, at in kills:
            events.write(json.dumps({"t": at, "what": "signal_sent", "node": victim}) + "\n")


def settings(args: argparse.Namespace) -> JobConfig:
    per_node = 2 if args.layout == "3d" else 1
    given = {"rehearsals": args.rehearsals, "overhead_budget": args.budget}
    return JobConfig(
        nodes=4,
        nproc_per_node=per_node,
        spares=1,
        **{name: value for name, value in given.items() if value is not None},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=NAMES, default="fsdp2")
    parser.add_argument("--faults", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rehearsals", type=int, help="ranks that the spare rehearses")
    parser.add_argument("--budget", type=float, help="share of the time that captures may cost")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--keep", type=Path, help="copy the run folder of the disturbed run here, for a picture of it")
    parser.add_argument("--json", type=Path)
    args, further = parser.parse_known_args()
    config = settings(args)
    with temporary_folder("deadpool-benchmark-") as folder:
        stop = folder / "stop"
        arguments = ["--layout", args.layout, "--device", args.device, "--steps", str(STEP_LIMIT), "--stop", str(stop)]
        trial = WorkloadTrial(config, arguments + further, folder / "disturbed", deadline_s=DEADLINE_S)
        kills: list[tuple[str, float]] = []
        disturbed = trial.run(lambda t: kills.extend(disturb(t, args.faults, args.seed, stop)))
        if args.keep is not None:
            keep(trial.job.run_dir, kills, args.keep)
        measured = [
            NodeKill(victim=victim, killed_at=at, recovery=recovery)
            for (victim, at), recovery in zip(kills, trial.recoveries(), strict=True)
        ]
        give_out(report(measured, None, disturbed, config.rehearsals), args.json)
        print(f"running the same {stop.read_text()} steps undisturbed", flush=True)
        calm = dataclasses.replace(config, spares=0)
        undisturbed = WorkloadTrial(calm, arguments + further, folder / "undisturbed", deadline_s=DEADLINE_S).run()
    give_out(report(measured, undisturbed, disturbed, config.rehearsals), args.json)


if __name__ == "__main__":
    main()
