"""Runs the cases of overhead.py with one large model on one device, and copies on a second node of the same machine."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pairs import interval_95, neighbour_ratios

from deadpool.cli.job_client import ask
from deadpool.config.job_config import JobConfig
from deadpool.control.launch.folder_lock import temporary_folder
from deadpool.errors import DeadPoolError, JobFailed
from deadpool_lab.workload.run import WorkloadTrial

SCRIPT = Path(__file__).with_name("solo.py")
RIVALS = Path(__file__).with_name("rivals.py")
DEADLINE_S = 900.0
LENGTHS = {"fits": 2.0, "short": 0.5, "shard": 1.0, "shard-long": 4.0, "shard-launch": 1.0}
"""Length of a step, in plain copies of the whole state."""
SEQUENCES = {"fits": 2, "short": 2, "shard": 8, "shard-long": 8, "shard-launch": 2}
"""In a micro-batch."""
FEWER = {"shard-long": 3, "shard-launch": 2}
"""By how much fewer stretches of a case are measured: longer steps scatter less."""
SHARD = 1 / 8
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    device: str
    parameters: float
    slots: int
    budget: float | None
    stretch: int
    stretches: int
    bulk_cpus: str
    trace: int  # steps to trace afterwards
    limit_s: float  # after this time a job is stopped, and what it has measured counts

    def config(self, holders: int) -> JobConfig:
        budget = {} if self.budget is None else {"overhead_budget": self.budget}
        return JobConfig(nodes=2, slots=self.slots, holders=holders, bulk_cpus=self.bulk_cpus, **budget)

    def chapter(self, case: str, *, longer: bool) -> str:
        """Makes stretches longer if a whole state is replicated: that takes many steps, and a stretch needs several."""
        stretch, stretches = (3 * self.stretch, self.stretches // 2) if longer else (self.stretch, self.stretches)
        stretches = max(2, stretches // FEWER.get(case, 1))
        return f"{case}:{LENGTHS[case]}:{SEQUENCES[case]}:{stretch}:{stretches}"


def measure(plan: Measurement, cases: Sequence[str]) -> dict[str, Any]:
    """Runs `fits` and `short` in one job, because allocating and registering memory for snapshots takes longest."""
    found: dict[str, Any] = {}
    whole = [case for case in ("fits", "short") if case in cases]
    if whole:
        found |= run_job(plan, whole, holders=1)
    if "fits-local" in cases:
        found["fits-local"] = run_job(plan, ["fits"], holders=0)["fits"]
    shards = [case for case in cases if case in ("shard", "shard-long", "shard-launch")]
    if shards:
        found |= run_job(plan, shards, holders=1, share=SHARD)
    if "shard-local" in cases:
        found["shard-local"] = run_job(plan, ["shard"], holders=0, share=SHARD)["shard"]
    if "rivals" in cases:
        found["rivals"] = run_rivals(plan)
    return found


def run_job(plan: Measurement, cases: Sequence[str], *, holders: int, share: float = 1.0) -> dict[str, Any]:
    arguments = ["--device", plan.device, "--parameters", str(plan.parameters), "--share", str(share)]
    arguments += ["--trace", str(plan.trace)]
    for case in cases:
        arguments += ["--chapter", plan.chapter(case, longer=holders > 0 and share == 1.0)]
    with temporary_folder("deadpool-benchmark-") as folder:
        trial = WorkloadTrial(plan.config(holders), arguments, folder, deadline_s=DEADLINE_S, script=SCRIPT)
        watch = Watch(trial, cases, limit_s=plan.limit_s)
        try:
            trial.run(lambda _: watch.follow())
        except JobFailed:
            if not watch.was_cut_short:
                raise
        machine = json.loads((trial.out / "speeds.json").read_text())
        return {case: report(case, watch, machine) | {"holders": holders} for case in cases}


class Watch:
    """Watches a running job: prints its progress and records its `deadpool status`."""

    def __init__(self, trial: WorkloadTrial, cases: Sequence[str], *, limit_s: float) -> None:
        self.trial, self._cases = trial, cases
        self._ends_at = time.monotonic() + limit_s
        self.was_cut_short = False
        self.statuses: list[dict[str, Any]] = []

    def follow(self) -> None:
        shown = -1
        while self.trial.job.coordinator is not None and self.trial.job.coordinator.poll() is None:
            self._record_status()
            done = len(self.stretches())
            if done != shown:
                shown = done
                print(f"{', '.join(self._cases)}: {done} stretches", file=sys.stderr, flush=True)
            if time.monotonic() > self._ends_at and not self.was_cut_short:
                self._cut_short()
            time.sleep(_POLL_S)

    def stretches(self, case: str | None = None) -> list[dict[str, Any]]:
        return self._lines("stretches.jsonl", case)

    def traces(self, case: str) -> list[dict[str, Any]]:
        return self._lines("traces.jsonl", case)

    def _lines(self, name: str, case: str | None) -> list[dict[str, Any]]:
        path = self.trial.out / name
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [each for each in found if case in (None, each["chapter"])]

    def _cut_short(self) -> None:
        self.was_cut_short = True
        with suppress(DeadPoolError):  # the job may have just ended
            ask(self.trial.job.run_dir, "stop")

    def _record_status(self) -> None:
        try:
            status = ask(self.trial.job.run_dir, "status")
            agents_s = {name: cpu_s(process.pid) for name, process in self.trial.job.nodes.items()}
        except (DeadPoolError, psutil.NoSuchProcess):
            return  # the job is starting or ending
        self.statuses.append({"t": time.time(), "agents_cpu_s": agents_s, **status})

    def statuses_within(self, began: float, ended: float) -> list[dict[str, Any]]:
        return [status for status in self.statuses if began <= status["t"] <= ended]


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def report(case: str, watch: Watch, machine: dict[str, Any]) -> dict[str, Any]:
    stretches = watch.stretches(case)
    by_device = [statistics.mean(each["steps_s"]) for each in stretches]
    switches = [bool(each["protected"]) for each in stretches]
    ratios = neighbour_ratios(switches, by_device)
    wall_ratios = neighbour_ratios(switches, [each["wall_s"] for each in stretches])
    unprotected_s = statistics.mean(s for s, on in zip(by_device, switches, strict=True) if not on)
    return {
        "ratio": statistics.median(ratios),
        "ratio_95": list(interval_95(ratios)),
        "wall_ratio": statistics.median(wall_ratios),
        "wall_ratio_95": list(interval_95(wall_ratios)),
        "cost_ms_per_step": 1e3 * (statistics.median(ratios) - 1) * unprotected_s,
        "each_ratio": ratios,
        "unprotected_step_s": unprotected_s,
        "copy_s": machine["state_bytes"] / machine["plain_bytes_per_s"],
        "micro_batches": stretches[-1]["micro_batches"],
        "stretches": len(stretches),
        "trace_ms_per_step": watch.traces(case),
        **captures(watch, stretches, machine),
        **machine,
    }


def captures(watch: Watch, stretches: list[dict[str, Any]], machine: dict[str, Any]) -> dict[str, Any]:
    """Reads what was captured during the stretches, from the job's events and its recorded status."""
    first = stretches[0]
    began, ended = first["ended"] - sum(first["steps_s"]), stretches[-1]["ended"]
    events = watch.trial.events()
    missed = [
        e["reason"] for e in events if e["what"] == "capture_missed" and e["rank"] == 0 and began <= e["t"] <= ended
    ]
    intervals = [e for e in events if e["what"] == "capture_interval" and e["t"] <= ended]
    statuses = watch.statuses_within(began, ended)
    protected_steps = sum(len(each["steps_s"]) + 1 for each in stretches if each["protected"])
    committed = {status["watermark"] for status in statuses if status.get("watermark") is not None}
    return {
        "protected_steps": protected_steps,
        "versions_committed": max(0, len(committed) - 1),
        "captures_missed": {reason: n for reason, n in Counter(missed).items() if reason != "switched off"},
        "told_by_status": statuses[-1]["overhead"] if statuses else None,
        "agents_cpu_s_per_step": agents_cpu_s(statuses, protected_steps),
        **copy_speed(statuses, machine),
        "slots": statuses[-1]["slots"] if statuses else None,
        "interval": intervals[-1]["every"] if intervals else 1,
        "interval_reason": intervals[-1].get("reason") if intervals else None,
        "rank_0": statuses[-1]["ranks"][0] if statuses and statuses[-1].get("ranks") else None,
    }


def agents_cpu_s(statuses: list[dict[str, Any]], protected_steps: int) -> dict[str, float]:
    """CPU time of each node's agent: node n0 trains and sends, n1 receives and verifies."""
    first, last = (statuses[index]["agents_cpu_s"] for index in (0, -1)) if statuses else ({}, {})
    return {name: (last[name] - first[name]) / protected_steps for name in first}


def copy_speed(statuses: list[dict[str, Any]], machine: dict[str, Any]) -> dict[str, float]:
    """Compares the speed of copies into the arena during training with that of a plain copy before it."""
    times = [ranks[0].get("copy_s") for status in statuses if (ranks := status.get("ranks"))]
    known = [each for each in times if each]
    if not known:
        return {}
    speed = machine["state_bytes"] / statistics.median(known)
    return {"arena_bytes_per_s": speed, "arena_against_plain": speed / machine["plain_bytes_per_s"]}


def run_rivals(plan: Measurement) -> dict[str, Any]:
    """Runs them in their own process after the jobs, because each keeps copies of the whole state in host memory."""
    command = [sys.executable, str(RIVALS), "--device", plan.device, "--parameters", str(plan.parameters)]
    command += ["--length", str(LENGTHS["fits"])]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=True)
    return dict(json.loads(finished.stdout.splitlines()[-1]))
