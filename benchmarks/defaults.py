"""Measures what a job with all defaults captures, what that costs, and what a loss would repeat.

    python benchmarks/defaults.py --json out/defaults.json               # four ranks on the CPU, steps of about 1 s
    python benchmarks/defaults.py --device cuda --json out/defaults.json # one rank on a GPU, a holder beside it

Nothing is set: neither slots nor a budget. Each run is two jobs on the CPU. In the first one protected and unprotected
stretches of steps alternate, for the step time and the CPU time of trainers (`overhead_ranks.py`). The second one only
trains: `status` is asked all the time for how many completed steps a loss would repeat, and its words at the end are
kept. On a GPU they are the cases shard, shard-long and shard-launch of overhead.py, whose reports say the same.

`worst` is that of all runs. The load of the machine is noted before and after each run: the figures of a busy machine
are doubtful, and so is a ratio whose spread contains both 1 and what is to be shown.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import overhead_ranks
from output import give_out

from deadpool.cli.job_client import ask
from deadpool.cli.show.status import _lines
from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.errors import DeadPoolError
from deadpool.protocol.identity import LEFT_OUT_OF, Schedule
from deadpool.protocol.permits import CaptureSchedule
from deadpool_lab.workload.run import WorkloadTrial

GPU_CASES = ("shard", "shard-long", "shard-launch")
WARM_UP = 3
"""The first steps make the optimizer's state and larger slots."""
_ASK_EVERY_S = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="of the job that only trains (cpu)")
    parser.add_argument("--stretch", type=int, default=6)
    parser.add_argument("--stretches", type=int, default=16)
    parser.add_argument("--nodes", type=int, default=4, help="with one rank each (cpu)")
    parser.add_argument("--batch", type=int, default=6, help="sequences per rank, which set the length of a step (cpu)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    give_out(measure_gpu(args) if args.device == "cuda" else measure(args), args.json)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    runs = []
    for number in range(args.runs):
        load = os.getloadavg()[0]
        arguments = ["--batch", str(args.batch)]
        ratios = overhead_ranks.measure("fsdp2", args.stretch, args.stretches, nodes=args.nodes, more=arguments)
        run = {"load_before": load, **ratios, **only_train(args.nodes, args.steps, arguments)}
        runs.append({**run, "load_after": os.getloadavg()[0]})
        print(f"run {number + 1}: {runs[-1]}", flush=True)
    worst = {name: max(run[name] for run in runs) for name in ("wall_ratio", "cpu_ratio", "repeated_at_most")}
    worst["captured_share"] = min(run["captured"] / run["steps"] for run in runs)
    return {"worst": worst, "runs": runs}


def only_train(nodes: int, steps: int, arguments: list[str]) -> dict[str, Any]:
    lags: Counter[int] = Counter()
    words: list[str] = []

    def watch(trial: WorkloadTrial) -> None:
        while trial.job.coordinator is not None and trial.job.coordinator.poll() is None:
            try:
                status = ask(trial.job.run_dir, "status")
            except DeadPoolError:
                status = None  # the job is starting or ending
            if status is not None and status["lag_steps"] is not None and WARM_UP < status["step"] < steps:
                lags[status["lag_steps"]] += 1
                words[:] = _lines(status)
            time.sleep(_ASK_EVERY_S)

    with temporary_folder("deadpool-benchmark-") as folder:
        settings = JobConfig(nodes=nodes)
        trial = WorkloadTrial(
            settings, ["--layout", "fsdp2", "--steps", str(steps), *arguments], folder, deadline_s=3600
        )
        trial.run(watch)
        events = trial.events()
    scheduled, missed = asked_for(events, steps), {e["step"] for e in events if e["what"] == "capture_missed"}
    return {
        "steps": steps,
        "captured": len(scheduled - missed),
        "left_out_to_compare": steps - len(scheduled),
        "missed": sorted(missed),
        "repeated": dict(
            sorted(lags.items())
        ),  # completed steps that a loss would repeat, and how often status said so
        "repeated_at_most": max(lags, default=0),
        "intervals": [e["reason"] for e in events if e["what"] == "interval_not_kept"],
        "status": words,
    }


def asked_for(events: list[dict[str, Any]], steps: int) -> set[int]:
    """The versions that the schedules asked for."""
    table = CaptureSchedule(Schedule(left_out_of=LEFT_OUT_OF))
    for event in events:
        if event["what"] == "capture_interval":
            schedule = Schedule(every=event["every"], start=event["from"], left_out_of=LEFT_OUT_OF)
            table.add(schedule, settled=0)
    return {number for number in range(1, steps + 1) if table.captures(number)}


def measure_gpu(args: argparse.Namespace) -> dict[str, Any]:
    import overhead_solo

    plan = overhead_solo.Measurement(
        device="cuda",
        parameters=1.4e9,
        slots=0,
        budget=None,
        stretch=4,
        stretches=60,
        bulk_cpus="",
        trace=0,
        limit_s=580.0,
    )
    runs = [overhead_solo.measure(plan, GPU_CASES) for _ in range(args.runs)]
    worst = {case: max(run[case]["ratio"] for run in runs) for case in GPU_CASES}
    return {"worst": worst, "runs": runs}


if __name__ == "__main__":
    main()
