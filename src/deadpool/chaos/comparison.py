"""One job from start to verdict: hit, stopped at a step, and run again undisturbed to the same step."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.chaos.diagnosis import take_down
from deadpool.chaos.faults import possible
from deadpool.chaos.faults.fault import Scene
from deadpool.chaos.fleet import Fleet
from deadpool.chaos.injected_fault import Wound
from deadpool.chaos.jobs import PACE_S, SCRIPT, Job
from deadpool.chaos.journal_check import journal_problems
from deadpool.chaos.network import Network
from deadpool.chaos.plan import draw
from deadpool.chaos.runner import Hung, Runner
from deadpool.chaos.status_view import Lookout, Steps
from deadpool.control.launcher import LocalJob, running
from deadpool.control.run_dir import RunDir
from deadpool.environment import CHAOS_PACE_VARIABLE
from deadpool.errors import DeadPoolError
from deadpool.workload.harness import WorkloadTrial
from deadpool.workload.results import Results, differences

AskStatus = Callable[[RunDir], dict[str, Any]]
Tell = Callable[[str, int, Wound | None], None]  # what is going on, the newest step, the fault that it is about

_LAST_STEPS = 10  # from the decision to stop: no rank may have come so far when it hears of it
_END_S = 90.0
_UNDISTURBED_S = 900.0


@dataclass(slots=True)
class Verdict:
    layout: str
    faults: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    took_s: float = 0.0
    hung: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def bit_identical(self) -> bool:
        return not self.problems


@dataclass(slots=True)
class Case:
    job: Job
    seed: int
    faults: int
    kinds: list[str]  # empty: all
    network: Network
    folder: Path
    diagnosis: Path  # where to leave what is known if it goes wrong
    deadline: float
    ask: AskStatus
    tell: Tell

    def judge(self) -> Verdict:
        verdict = Verdict(layout=self.job.name)
        began = time.monotonic()
        disturbed = self._disturb(verdict)
        verdict.took_s = round(time.monotonic() - began, 1)
        if disturbed is not None:
            verdict.problems += differences(self._undisturbed(), disturbed)
            verdict.problems += journal_problems(RunDir(self.folder / "disturbed" / "run").journal, disturbed)
        return verdict

    # --- hit ------------------------------------------------------------------------------------------------------

    def _disturb(self, verdict: Verdict) -> Results | None:
        local = self._local_job()
        fleet = Fleet(local, self.network, random.Random(f"{self.seed} fleet {self.job.name}"))
        fleet.prepare()
        out = self.folder / "disturbed" / "out"
        lookout = Lookout(lambda: self.ask(local.run_dir))
        steps = Steps(out, self.job.nodes * self.job.nproc_per_node)
        scene = Scene(fleet, self.network, steps, local.run_dir, lookout.sight)
        runner = Runner(local, scene, lookout, self.job.losses_at_once, self.deadline, self._tell_of(steps))
        with running(local):
            lookout.start()
            try:
                runner.run(draw(f"{self.seed} {self.job.name}", self.faults, possible(self.network, self.kinds)))
                self._finish(local, steps, verdict)
            except (DeadPoolError, subprocess.TimeoutExpired) as error:
                verdict.problems.append(str(error))
                verdict.hung += isinstance(error, (Hung, subprocess.TimeoutExpired))
                take_down(local, fleet, lookout.sight, self.diagnosis)
            finally:
                lookout.close()
                runner.relent_all()
                verdict.faults = [{"layout": self.job.name, **wound.record()} for wound in runner.wounds]
        return Results.read(out) if not verdict.problems else None

    def _local_job(self) -> LocalJob:
        folder = self.folder / "disturbed"
        return LocalJob(
            self.job.config(self.network.hub_host),
            RunDir.create(folder / "run"),
            [str(SCRIPT), "--out", str(folder / "out"), *self.job.arguments(self._stop_file)],
            quiet=True,
            environment={CHAOS_PACE_VARIABLE: str(PACE_S), "PYTHONFAULTHANDLER": "1"},
            site=self.network,
        )

    @property
    def _stop_file(self) -> Path:
        return self.folder / "stop"

    def _finish(self, local: LocalJob, steps: Steps, verdict: Verdict) -> None:
        verdict.steps = steps.begun + _LAST_STEPS
        draft = self.folder / "stop.draft"
        draft.write_text(str(verdict.steps))
        draft.rename(self._stop_file)
        code = local.wait(_END_S)
        if code:
            verdict.problems.append(f"the job ended with code {code}")

    def _tell_of(self, steps: Steps) -> Callable[[Wound | None], None]:
        return lambda wound: self.tell(f"{self.job.name}: hit", steps.done + 1, wound)

    # --- undisturbed -------------------------------------------------------------------------------------------------

    def _undisturbed(self) -> Results:
        folder = self.folder / "undisturbed"
        trial = WorkloadTrial(
            self.job.undisturbed(), self.job.arguments(self._stop_file), folder, deadline_s=_UNDISTURBED_S
        )
        steps = Steps(trial.out, self.job.nodes * self.job.nproc_per_node)
        with running(trial.job):
            while trial.job.tend() is None and time.monotonic() < self.deadline:
                steps.look()
                self.tell(f"{self.job.name}: undisturbed", steps.done + 1, None)
                time.sleep(0.5)
        return trial.results()
