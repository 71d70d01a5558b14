"""Measures what recoveries leak in the processes that survive them: one job with many faults, counted after each one.

    python benchmarks/leaks.py --recoveries 600 --json out/leaks.json

The job has 3 nodes with one trainer each. The trainers of all nodes but n0 are killed in turn, and every tenth time a
whole node is killed and another node joins. The trainer of node n0, its agent and the coordinator are never killed:
their descriptors, threads and memory are counted after each recovery. The job is compared with an undisturbed one of
the same number of steps, bit for bit.
"""

from __future__ import annotations

import argparse
import signal
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from output import give_out

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.demo.trial import differences
from deadpool_lab.chaos.status_view import Tail
from deadpool_lab.workload.run import WorkloadTrial

MODEL = ["--layers", "2", "--width", "64", "--sequence", "32", "--vocabulary", "256", "--dropout", "0.1"]
NODES = 3
EARLY = 10  # the counts after so many recoveries are compared with those at the end
AROUND = 3  # counts on either side of that; their median is taken
LAST_STEPS = 20  # from the decision to stop until the stop: no rank may have done so many steps when it reads it
HEAL_S = 120.0
WARM_STEPS = 300
"""Steps before the first fault, until the memory for the last 2,000 collectives that torch remembers is full."""


@dataclass(slots=True)
class Injector:
    """Kills a trainer or a node, and waits until a new version is complete on all nodes."""

    trial: WorkloadTrial
    tail: Tail = field(init=False)
    counts: dict[str, int] = field(default_factory=dict)
    joined: int = 0

    def __post_init__(self) -> None:
        self.tail = Tail(self.trial.job.run_dir.events)

    def inject(self, index: int, *, whole_node: bool) -> None:
        status = self.status()
        seats = {rank["rank"]: rank["node"] for rank in status["ranks"]}
        rank = [rank for rank, node in sorted(seats.items()) if node != "n0"][index % (NODES - 1)]
        gone, watermark = self.count("go"), status["watermark"]
        if whole_node:
            self.trial.job.kill_node(seats[rank])
        else:
            ask(self.trial.job.run_dir, "kill", node=None, rank=rank, signal=int(signal.SIGKILL), at=None, step=None)
        self.wait(lambda: self.count("go") > gone, f"recovery {index + 1}")
        self.wait(lambda: self.status()["watermark"] > watermark, f"a new version after recovery {index + 1}")
        if whole_node:
            self.joined += 1
            rehearsed = self.count("rehearsed")
            self.trial.job.add_node(f"late{self.joined}", spare=True)
            self.wait(lambda: self.count("rehearsed") > rehearsed, "a new spare")

    def status(self) -> dict[str, Any]:
        return ask(self.trial.job.run_dir, "status")

    def count(self, what: str) -> int:
        for event in self.tail.new():
            self.counts[event["what"]] = self.counts.get(event["what"], 0) + 1
        return self.counts.get(what, 0)

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        self.trial.await_true(ready, what, HEAL_S)


def _seated(node: dict[str, Any]) -> str | None:
    return next((each["trainer"] for each in node["trainers"] if each["state"] == "seated"), None)


def count_all(trial: WorkloadTrial, injector: Injector) -> dict[str, dict[str, float]]:
    """Counts the resources of the three processes that are never killed."""
    node = next(node for node in injector.status()["nodes"] if node["node"] == "n0")
    assert trial.job.coordinator is not None
    pids = {
        "trainer": node["trainer_pids"][_seated(node)],
        "agent": node["pid"],
        "coordinator": trial.job.coordinator.pid,
    }
    return {name: _count(pid) | {"pid": pid} for name, pid in pids.items()}


def _count(pid: int) -> dict[str, float]:
    process = psutil.Process(pid)
    with process.oneshot():
        return {
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
            "memory_mb": process.memory_full_info().uss / 1e6,
        }


def disturb(trial: WorkloadTrial, recoveries: int, node_every: int, stop: Path) -> list[dict[str, dict[str, float]]]:
    trial.await_event("rehearsed")
    trial.await_step(WARM_STEPS, timeout_s=300.0)
    injector = Injector(trial)
    counts = [count_all(trial, injector)]
    for index in range(recoveries):
        injector.inject(index, whole_node=node_every > 0 and index % node_every == node_every - 1)
        counts.append(count_all(trial, injector))
        print(f"recovery {index + 1} of {recoveries}: {counts[-1]['trainer']}", flush=True)
    newest = max(max(each) for each in trial.results().losses.values())
    draft = stop.with_suffix(".draft")
    draft.write_text(str(newest + LAST_STEPS))
    draft.rename(stop)
    return counts


def report(counts: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    return {
        "recoveries": len(counts) - 1,
        "kept_its_process": len({each["trainer"]["pid"] for each in counts}) == 1,
        **{
            name: {what: _change(counts, name, what) for what in counts[0][name] if what != "pid"} for name in counts[0]
        },
    }


def _change(counts: list[dict[str, dict[str, float]]], name: str, what: str) -> dict[str, float]:
    values = [each[name][what] for each in counts]
    at = min(EARLY, len(values) - 1)
    early = statistics.median(values[max(0, at - AROUND) : at + AROUND + 1])
    late = statistics.median(values[-2 * AROUND - 1 :])
    return {"before": values[0], f"after_{at}": early, "in_the_end": late, "ratio": round(late / early, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", default="fsdp2")
    parser.add_argument("--recoveries", type=int, default=50)
    parser.add_argument(
        "--node-every", type=int, default=10, help="kill a whole node at every Nth fault; 0 means never"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with temporary_folder("deadpool-benchmark-") as folder:
        stop = folder / "stop"
        arguments = ["--layout", args.layout, "--steps", "10000000", "--stop", str(stop), *MODEL]
        config = JobConfig(nodes=NODES, spares=1, rehearsals=1, overhead_budget=0.0, quarantine_after=0).checked()
        trial = WorkloadTrial(config, arguments, folder / "disturbed", deadline_s=300)
        counts: list[dict[str, dict[str, float]]] = []
        disturbed = trial.run(lambda job: counts.extend(disturb(job, args.recoveries, args.node_every, stop)))
        print("running the same steps undisturbed", flush=True)
        calm = JobConfig(nodes=NODES, capture_every=1000).checked()
        undisturbed = WorkloadTrial(calm, arguments, folder / "undisturbed", deadline_s=3600).run()
    different = differences(undisturbed, disturbed)
    steps = disturbed.newest_step() + 1
    give_out({"bit_identical": not different, "steps": steps, **report(counts)}, args.json)
    if different:
        raise SystemExit("\n".join(different))


if __name__ == "__main__":
    main()
