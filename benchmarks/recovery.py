"""How long a job stands still when a node dies: SIGKILL to a random node, again and again, against an undisturbed run.

    python benchmarks/recovery.py --layout fsdp2 --faults 10 --json out/recovery.json
    LD_PRELOAD=libnccl.so.2 NCCL_MULTI_RANK_GPU_ENABLE=1 python benchmarks/recovery.py --device cuda --faults 10

4 nodes of one trainer (3d: of two) and one warm spare node; a new one joins after each kill. Per fault, from the kill:
`first_step_s` until every rank has done a step begun after it, `net_recovery_s` the same less one median step of the
undisturbed run, which comes last and does as many steps as the other did. With --rehearsals 4 the spare has rehearsed
all four ranks, with 1 only one of them: when another is lost, a fresh process is forked and runs the script.

With --device cuda ranks and rehearsals share the GPUs of this machine; where there are fewer GPUs than ranks, NCCL
has to be told that they may be shared. Trainers have the environment of this command. Unknown options go to the
workload, e.g. --layers 2.
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

from deadpool.config import JobConfig
from deadpool.control.run_dir import RunDir
from deadpool.control.temporary_folder import temporary_folder
from deadpool.workload.comparison import Injection, kill_in_mid_step
from deadpool.workload.harness import Trial
from deadpool.workload.layouts import NAMES
from deadpool.workload.results import Results, differences

STEP_LIMIT = 100_000  # never reached
LAST_STEPS = 10  # after the last recovery: so far ahead that no rank is there yet
DEADLINE_S = 1800.0
QUIET_STEPS = 3  # between the rehearsal of a new spare and the next kill


def spread(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "worst": ordered[-1]}


def disturb(trial: Trial, faults: int, seed: int, stop: Path) -> list[tuple[str, float]]:
    """Kills, each once its replacement is warm; returns who and when. Then the job may end."""
    choose, kills = random.Random(seed), []
    config = trial.config
    seated = [f"n{i}" for i in range(config.nodes)]
    for index in range(faults):
        rehearsals = (index + 1) * config.rehearsals * config.nproc_per_node
        trial.await_event("rehearsed", rehearsals, timeout_s=180)
        trial.await_step(trial.results().newest_step() + QUIET_STEPS)
        position = choose.randrange(len(seated))
        victim, seated[position] = seated[position], f"n{config.nodes + index}"
        kills.append((victim, kill_in_mid_step(trial, victim, trial.results().median_step_s(), rehearsals)))
        print(f"fault {index + 1} of {faults}: killed {victim}", flush=True)
        # Before a new spare takes CPU time away.
        trial.await_event("resumed", (index + 1) * config.nodes * config.nproc_per_node)
        if index + 1 < faults:
            trial.job.add_node(f"n{config.nodes + index + 1}", spare=True)
    stop.write_text(str(trial.results().newest_step() + LAST_STEPS))
    return kills


def report(injections: list[Injection], undisturbed: Results, disturbed: Results, rehearsals: int) -> dict[str, Any]:
    step_s = undisturbed.median_step_s()
    phases = injections[0].phases_s()
    return {
        "bit_identical": not differences(undisturbed, disturbed),
        "faults": len(injections),
        "rehearsals": rehearsals,
        "median_step_s": step_s,
        "first_step_s": spread(s.first_step_s() for s in injections),
        "net_recovery_s": spread(s.first_step_s() - step_s for s in injections),
        "phases_s": {name: spread(s.phases_s()[name] for s in injections) for name in phases},
        "steps_redone": [s.recovery.lost_steps for s in injections],
        "each_net_s": [s.first_step_s() - step_s for s in injections],
    }


def keep(run_dir: RunDir, kills: list[tuple[str, float]], folder: Path) -> None:
    """With the kills among the events: they came from outside, so the job itself knows only when it noticed."""
    shutil.copytree(run_dir.path, folder, dirs_exist_ok=True)
    with RunDir(folder).events.open("a") as events:
        for victim, at in kills:
            events.write(json.dumps({"t": at, "what": "signal_sent", "node": victim}) + "\n")


def settings(args: argparse.Namespace) -> JobConfig:
    per_node = 2 if args.layout == "3d" else 1
    return JobConfig(nodes=4, nproc_per_node=per_node, spares=1, rehearsals=args.rehearsals, overhead_budget=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=NAMES, default="fsdp2")
    parser.add_argument("--faults", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rehearsals", type=int, default=4, help="ranks that the spare rehearses")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--keep", type=Path, help="copy the run folder of the disturbed run here, for a picture of it")
    parser.add_argument("--json", type=Path)
    args, further = parser.parse_known_args()
    config = settings(args)
    with temporary_folder("deadpool-benchmark-") as folder:
        stop = folder / "stop"
        arguments = ["--layout", args.layout, "--device", args.device, "--steps", str(STEP_LIMIT), "--stop", str(stop)]
        trial = Trial(config, arguments + further, folder / "disturbed", deadline_s=DEADLINE_S)
        kills: list[tuple[str, float]] = []
        disturbed = trial.run(lambda t: kills.extend(disturb(t, args.faults, args.seed, stop)))
        if args.keep is not None:
            keep(trial.job.run_dir, kills, args.keep)
        injections = [
            Injection(victim=victim, killed_at=at, recovery=recovery)
            for (victim, at), recovery in zip(kills, trial.recoveries(), strict=True)
        ]
        print(f"the same {stop.read_text()} steps undisturbed", flush=True)
        calm = dataclasses.replace(config, spares=0)
        undisturbed = Trial(calm, arguments + further, folder / "undisturbed", deadline_s=DEADLINE_S).run()
    give_out(report(injections, undisturbed, disturbed, args.rehearsals), args.json)


if __name__ == "__main__":
    main()
