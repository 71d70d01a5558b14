"""Measures what protection costs four ranks that share the CPUs of this machine.

Per step and rank it measures wall time, and CPU time of all threads of the trainer's process. `*_ratio` is protected
divided by unprotected time: the median over neighbouring stretches, with the quartiles as its range. The CPU time of
agents is not included; on a machine with fewer cores than processes it shows in the wall time.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.demo.trial import Results, StepTime
from deadpool_lab.workload.run import WorkloadTrial

WARM_UP_STRETCHES = 1


def stretches(steps: list[StepTime], length: int) -> list[tuple[float, float]]:
    """Returns wall and CPU time per step of each stretch, without its first step, which includes the switch."""
    found = []
    for start in range(0, len(steps) - length + 1, length):
        first, last = steps[start], steps[start + length - 1]
        count = length - 1
        found.append(((last.ended - first.ended) / count, (last.cpu_s - first.cpu_s) / count))
    return found[2 * WARM_UP_STRETCHES :]


def ratios(per_step: list[float]) -> dict[str, float]:
    """Compares each protected stretch, which are the even ones, with the mean of its unprotected neighbours."""
    pairs = [per_step[i] / statistics.mean([per_step[i - 1], per_step[i + 1]]) for i in range(2, len(per_step) - 1, 2)]
    low, median, high = statistics.quantiles(pairs, n=4)
    return {"median": median, "low": low, "high": high}


def report(results: Results, length: int) -> dict[str, Any]:
    by_rank = [stretches(results.steps[rank], length) for rank in sorted(results.steps)]
    wall = [statistics.mean(rank[i][0] for rank in by_rank) for i in range(len(by_rank[0]))]
    cpu = [statistics.mean(rank[i][1] for rank in by_rank) for i in range(len(by_rank[0]))]
    wall_ratio, cpu_ratio = ratios(wall), ratios(cpu)
    return {
        "wall_ratio": wall_ratio["median"],
        "wall_ratio_spread": [wall_ratio["low"], wall_ratio["high"]],
        "cpu_ratio": cpu_ratio["median"],
        "cpu_ratio_spread": [cpu_ratio["low"], cpu_ratio["high"]],
        "step_s": statistics.median(wall),
        "trainer_cpu_s_per_step": statistics.median(cpu),
        "stretches": len(wall),
    }


def measure(layout: str, stretch: int, count: int, *, nodes: int = 4, more: Sequence[str] = ()) -> dict[str, Any]:
    """All settings are the defaults. `more` are further arguments of the workload."""
    steps = stretch * count
    arguments = ["--layout", layout, "--steps", str(steps), "--alternate", str(stretch), *more]
    with temporary_folder("deadpool-benchmark-") as folder:
        trial = WorkloadTrial(JobConfig(nodes=nodes), arguments, folder, deadline_s=1800)
        results = trial.run(lambda trial: show_progress(trial, steps))
        missed = sum(e["what"] == "capture_missed" and e["reason"] != "switched off" for e in trial.events())
    return {**report(results, stretch), "captures_missed": missed}


def show_progress(trial: WorkloadTrial, steps: int) -> None:
    shown = [-1]

    def done() -> bool:
        newest = trial.results().newest_step()
        if newest // 10 > shown[0] // 10:
            print(f"step {newest} of {steps}", flush=True)
            shown[0] = newest
        return newest >= steps - 1

    trial.await_true(done, "the last step", 1800)
