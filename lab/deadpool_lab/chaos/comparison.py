"""One job with injected faults, stopped at a step, compared with the same job that ran undisturbed to that step. The
result of a run is one JSON object, with what each kind of fault cost."""

from __future__ import annotations

import random
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.control.launch.launcher import LocalJob, running
from deadpool.control.launch.run_dir import RunDir
from deadpool.demo.trial import Results, differences
from deadpool.errors import DeadPoolError
from deadpool_lab.chaos.checks import (
    Span,
    decisions,
    journal_problems,
    log_problems,
    oscillations,
    read_log,
    spans_of_loss,
    storage_problems,
)
from deadpool_lab.chaos.faults import possible
from deadpool_lab.chaos.faults.fault import FaultContext
from deadpool_lab.chaos.plan import PACE_VARIABLE, SCRIPT, ChaosJob, Intent, Timing, draw
from deadpool_lab.chaos.runner import InjectedFault, NotHealed, Runner
from deadpool_lab.chaos.status_view import StatusPoller, StepProgress, take_down
from deadpool_lab.chaos.surroundings.disk import Disk
from deadpool_lab.chaos.surroundings.health_files import HealthFiles
from deadpool_lab.chaos.surroundings.network import Network
from deadpool_lab.chaos.surroundings.processes import JobProcesses, Terminal
from deadpool_lab.workload.run import WorkloadTrial

AskStatus = Callable[[RunDir], dict[str, Any]]
Tell = Callable[[str, int, InjectedFault | None], None]  # what runs, its newest step, and the fault that has news

_LAST_STEPS = 10  # from the decision to stop: no rank is further when it reads the decision
_END_S = 90.0
_UNDISTURBED_S = 900.0

Record = dict[str, Any]


@dataclass(slots=True)
class ComparisonResult:
    layout: str
    faults: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    took_s: float = 0.0
    decisions: list[dict[str, Any]] = field(default_factory=list)  # about protection
    hung: int = 0
    events: int = 0  # in the log
    problems: list[str] = field(default_factory=list)

    @property
    def bit_identical(self) -> bool:
        return not self.problems


@dataclass(slots=True)
class Case:
    job: ChaosJob
    seed: int
    faults: int
    kinds: list[str]  # empty: all
    timing: Timing
    network: Network
    disk: Disk
    folder: Path
    diagnosis: Path  # folder for what is known of a job that did not recover
    deadline: float
    ask: AskStatus
    tell: Tell
    until: float | None = None  # no fault comes after that time; None: all of them come
    plan: list[Intent] | None = None  # the faults, where they are not drawn

    def run(self) -> ComparisonResult:
        result = ComparisonResult(layout=self.job.name)
        began = time.monotonic()
        disturbed = self._disturb(result)
        result.took_s = round(time.monotonic() - began, 1)
        if disturbed is not None:
            result.problems += differences(self._undisturbed(), disturbed)
            result.problems += journal_problems(RunDir(self._disturbed / "run").journal, disturbed)
        return result

    # --- with faults -------------------------------------------------------------------------------------------------

    @property
    def _disturbed(self) -> Path:
        return self.folder / "disturbed"

    def _disturb(self, result: ComparisonResult) -> Results | None:
        self.disk.mount(self._disturbed / "run")
        terminal = Terminal(self._disturbed / "console.jsonl")
        terminal.open()
        try:
            injected = self._inject(terminal, result)
        finally:
            terminal.close()
            self.disk.unmount()
        self._judge_events(terminal, injected, result)
        return Results.read(self._disturbed / "out") if not result.problems else None

    def _inject(self, terminal: Terminal, result: ComparisonResult) -> list[InjectedFault]:
        local = self._local_job(terminal)
        fleet = random.Random(f"{self.seed} fleet {self.job.name}")
        processes = JobProcesses(local, self.network, fleet, self._health)
        processes.prepare()
        poller = StatusPoller(lambda: self.ask(local.run_dir))
        steps = StepProgress(self._disturbed / "out", self.job.nodes * self.job.nproc_per_node)
        context = FaultContext(
            processes,
            self.network,
            steps,
            local.run_dir,
            poller.view,
            self.timing,
            health=self._health,
            disk=self.disk,
            terminal=terminal,
        )
        runner = Runner(
            local, context, poller, self.job.losses_at_once, self.deadline, self._reporter(steps), until=self.until
        )
        with running(local):
            poller.start()
            try:
                runner.run(self._draw())
                self._finish(local, steps, result)
            except (DeadPoolError, subprocess.TimeoutExpired) as error:
                result.problems.append(str(error))
                result.hung += isinstance(error, (NotHealed, subprocess.TimeoutExpired))
                self.disk.heal()  # what is known is on it
                take_down(local, processes, poller.view, self.diagnosis, said=terminal.said)
            finally:
                poller.close()
                runner.end_all()
                self._judge_decisions(runner.events, result)
                result.faults = [{"layout": self.job.name, **injected.record()} for injected in runner.injected]
                result.problems += [each.fault.problem for each in runner.injected if each.fault.problem is not None]
        return runner.injected

    @property
    def _health(self) -> HealthFiles | None:
        return HealthFiles(self.folder / "health") if self.timing.dwell_s is not None else None

    def _judge_decisions(self, events: list[dict[str, Any]], result: ComparisonResult) -> None:
        if self.timing.dwell_s is not None:
            result.decisions = decisions(events)
            result.problems += oscillations(events, self.timing.dwell_s)

    def _judge_events(self, terminal: Terminal, injected: list[InjectedFault], result: ComparisonResult) -> None:
        log = read_log(RunDir(self._disturbed / "run").events)
        outages = [each.span for each in injected if each.fault.kind.startswith("disk")]
        killed = [each.hit_at for each in injected if each.fault.kind == "kill_coordinator"]
        took_over = [each["t"] for each in log if each["what"] == "took_over"]
        coordinators = [each.span for each in injected if "coordinator" in each.fault.kind]
        coordinators += [Span(at, at) for at in took_over]
        result.events = len(log)
        result.problems += log_problems(log, terminal.records(), spans_of_loss(killed, outages))
        result.problems += storage_problems(log, outages, coordinators)

    def _draw(self) -> list[Intent]:
        if self.plan is not None:
            return self.plan
        kinds = possible(self.network, self.disk, self.timing.holders, self.kinds)
        return draw(f"{self.seed} {self.job.name}", self.faults, kinds, one_by_one=self.timing.one_by_one)

    def _local_job(self, terminal: Terminal) -> LocalJob:
        folder = self._disturbed
        return LocalJob(
            self.job.config(self.network.hub_host, self.timing, self._health.pattern if self._health else "/"),
            RunDir.create(folder / "run"),
            [str(SCRIPT), "--out", str(folder / "out"), *self.job.arguments(self._stop_file)],
            quiet=True,
            output=terminal.descriptor,
            environment={PACE_VARIABLE: str(self.timing.step_pause_s), "PYTHONFAULTHANDLER": "1"},
            site=self.network,
        )

    @property
    def _stop_file(self) -> Path:
        return self.folder / "stop"

    def _finish(self, local: LocalJob, steps: StepProgress, result: ComparisonResult) -> None:
        result.steps = steps.begun + _LAST_STEPS
        draft = self.folder / "stop.draft"
        draft.write_text(str(result.steps))
        draft.rename(self._stop_file)
        code = local.wait(_END_S)
        if code:
            result.problems.append(f"the job ended with code {code}")

    def _reporter(self, steps: StepProgress) -> Callable[[InjectedFault | None], None]:
        return lambda injected: self.tell(f"{self.job.name}: with faults", steps.done + 1, injected)

    # --- undisturbed -------------------------------------------------------------------------------------------------

    def _undisturbed(self) -> Results:
        folder = self.folder / "undisturbed"
        trial = WorkloadTrial(
            self.job.undisturbed(), self.job.arguments(self._stop_file), folder, deadline_s=_UNDISTURBED_S
        )
        steps = StepProgress(trial.out, self.job.nodes * self.job.nproc_per_node)
        with running(trial.job):
            while trial.job.poll() is None and time.monotonic() < self.deadline:
                steps.read_new()
                self.tell(f"{self.job.name}: undisturbed", steps.done + 1, None)
                time.sleep(0.5)
        return trial.results()


def summary(
    results: Sequence[ComparisonResult], *, seed: int, asked: int, network: str, disk: str, left_behind: list[str]
) -> Record:
    faults = [fault for result in results for fault in result.faults]
    healed = [fault for fault in faults if "recovery_s" in fault]
    return {
        "bit_identical": bool(results) and all(result.bit_identical for result in results),
        "seed": seed,
        "asked": asked,
        "hung": sum(result.hung for result in results),
        "network": network,
        "disk": disk,
        "jobs": [
            {
                "layout": v.layout,
                "steps": v.steps,
                "took_s": v.took_s,
                "faults": len(v.faults),
                "events": v.events,
                "problems": v.problems,
            }
            for v in results
        ],
        "left_behind": left_behind,
        "first_step_s": costs_by_kind(healed, "first_step_s"),
        "recovery_s": costs_by_kind(healed, "recovery_s"),
        "decisions": {v.layout: v.decisions for v in results},
        "faults": faults,
    }


def costs_by_kind(healed: Sequence[Record], cost: str) -> dict[str, Record]:
    return {kind: _costs(healed, kind, cost) for kind in sorted({fault["kind"] for fault in healed})}


def _costs(healed: Sequence[Record], kind: str, cost: str) -> Record:
    times = [fault[cost] for fault in healed if fault["kind"] == kind]
    return {"median": round(statistics.median(times), 3), "worst": max(times), "count": len(times)}


def is_good(figures: Record) -> bool:
    return bool(
        figures["bit_identical"]
        and not figures["hung"]
        and not figures["left_behind"]
        and len(figures["faults"]) == figures["asked"]
    )
