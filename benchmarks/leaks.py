"""What a recovery leaves behind in those who live through it: one job, many killed nodes, counted before and after.

    python benchmarks/leaks.py --recoveries 50 --json out/leaks.json

3 nodes of one trainer; node n0 is never killed, and its trainer, its agent and the coordinator are looked at after each
recovery. Unavoidable is one idle thread per process group and recovery in a survivor: torch keeps the replaced gloo
backend for as long as its group lives. Everything else is a leak.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import psutil
from output import give_out

from deadpool.cli.asking import ask
from deadpool.config import JobConfig
from deadpool.control.janitor import temporary_folder
from deadpool.workload.harness import Trial
from deadpool.workload.results import differences

SMALL = ["--layers", "2", "--width", "64", "--sequence", "32", "--vocabulary", "256"]
STEPS_PER_RECOVERY = 40
WARM_UP = 5  # recoveries until caches and allocators have settled


def count(pid: int) -> dict[str, float]:
    process = psutil.Process(pid)
    with process.oneshot():
        return {
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
            "memory_mb": process.memory_full_info().uss / 1e6,
        }


def look(trial: Trial) -> dict[str, dict[str, float]]:
    """The three that live through everything."""
    nodes = {node["node"]: node for node in ask(trial.job.run_dir, "status")["nodes"]}
    assert trial.job.coordinator is not None
    trainer = next(t["trainer"] for t in nodes["n0"]["trainers"] if t["state"] == "seated")
    pids = {
        "trainer": nodes["n0"]["trainer_pids"][trainer],
        "agent": nodes["n0"]["pid"],
        "coordinator": trial.job.coordinator.pid,
    }
    return {who: count(pid) for who, pid in pids.items()}


def disturb(trial: Trial, recoveries: int) -> list[dict[str, dict[str, float]]]:
    trial.await_event("rehearsed")
    trial.await_step(2)
    looks = [look(trial)]
    seated = ["n1", "n2"]
    for index in range(recoveries):
        victim, seated[index % 2] = seated[index % 2], f"n{3 + index}"
        trial.await_event("rehearsed", index + 1)
        trial.job.kill_node(victim)
        trial.await_event("resumed", (index + 1) * trial.config.nodes)
        trial.job.add_node(f"n{4 + index}", spare=True)
        trial.await_step(trial.results().newest_step() + 1)
        looks.append(look(trial))
        print(f"recovery {index + 1} of {recoveries}: {looks[-1]['trainer']}", flush=True)
    return looks


def report(looks: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    first, settled, last = looks[0], looks[min(WARM_UP, len(looks) - 1)], looks[-1]
    spread = max(1, len(looks) - 1 - WARM_UP)
    return {
        "recoveries": len(looks) - 1,
        **{
            who: {
                what: {
                    "before": first[who][what],
                    "after": last[who][what],
                    "per_recovery": (last[who][what] - settled[who][what]) / spread,
                }
                for what in first[who]
            }
            for who in first
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", default="fsdp2")
    parser.add_argument("--recoveries", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    arguments = ["--layout", args.layout, "--steps", str(STEPS_PER_RECOVERY * args.recoveries), *SMALL]
    with temporary_folder("deadpool-benchmark-") as folder:
        undisturbed = Trial(
            JobConfig(nodes=3, overhead_budget=0.0), arguments, folder / "undisturbed", deadline_s=1800
        ).run()
        trial = Trial(
            JobConfig(nodes=3, spares=1, overhead_budget=0.0), arguments, folder / "disturbed", deadline_s=3600
        )
        looks: list[dict[str, dict[str, float]]] = []
        disturbed = trial.run(lambda t: looks.extend(disturb(t, args.recoveries)))
    summary = {"bit_identical": not differences(undisturbed, disturbed), **report(looks)}
    give_out(summary, args.json)


if __name__ == "__main__":
    main()
