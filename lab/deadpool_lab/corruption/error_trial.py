"""One job, whose devices err in audited steps one after the other, compared with the same job without an error.

Each error is ordered for the next step that is audited, and then an audit is asked for; or the other way round, so that
the step is wrong where it is computed again. An order that comes too late for one audit is carried out in the next.

No audit finds a bit of a copy, in the memory of a node or on its way: the holder does, by the checksum, when it stores
the copy. What was damaged on its way is sent again, and counts. What is damaged where it lies never counts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.config.job_config import JobConfig
from deadpool.config.orders import ARENA, AUDITED, UPDATED
from deadpool.control.launch.run_dir import RunDir
from deadpool.demo.trial import differences
from deadpool.errors import ConfigError, JobFailed
from deadpool.protocol.causes import Refusal
from deadpool_lab.corruption.plan import Error, Shape
from deadpool_lab.workload.run import WorkloadTrial

Ask = Callable[..., dict[str, Any]]
Record = dict[str, Any]

_STEPS = 1_000_000  # the job is stopped behind the last error
_MODEL = ["--layers", "4", "--width", "32", "--sequence", "16", "--vocabulary", "128"]
_NOISE = ["--dropout", "0.1", "--clip", "1.0", "--journal"]
_LAST_STEPS, _LAST_S = 20, 4.0  # from the decision to stop: no rank is further when it reads the decision
_END_S = 1800.0  # for the steps behind the last error, and for the undisturbed run, on a machine that is busy
_AUDITS_AT_MOST = 4  # for one error
_POLL_S = 0.05
_VERDICTS = ("step_audit_passed", "step_audits_ended")
_VOTES = ("corruption_suspected", "corruption_found")
_BY_VOTE = "replicas"
"""The stage of an error whose audit was put off, and that replicas have found in a version after it: two of them cannot
say who it was, because the other one has got its numbers by then."""
_AT_HOLDER = "holder"
"""The stage of an error in a copy: a holder has compared the bytes with the checksum of their seal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    error: Error
    step: int  # in which the bit flipped
    stage: str  # that differed first; empty: nothing did
    named: tuple[int, ...]  # ranks
    expected: tuple[int, ...]
    audits: int
    took_s: float

    @property
    def is_detected(self) -> bool:
        return bool(self.stage)

    @property
    def is_named_rightly(self) -> bool:
        return self.named == self.expected

    def record(self) -> Record:
        error = self.error
        place = {"number": error.number, "flips": error.flips, "rank": error.rank, "in_redo": error.in_redo}
        found = {"step": self.step, "stage": self.stage, "named": list(self.named), "expected": list(self.expected)}
        return {**place, **found, "audits": self.audits, "took_s": round(self.took_s, 3)}


@dataclass(slots=True)
class ErrorTrial:
    shape: Shape
    errors: list[Error]
    folder: Path
    deadline: float  # by time.monotonic(); no error is injected after it
    ask: Ask
    tell: Callable[[Outcome], None]
    outcomes: list[Outcome] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _workload: WorkloadTrial = field(init=False)

    def run(self) -> None:
        config = JobConfig(
            nodes=self.shape.nodes,
            nproc_per_node=self.shape.nproc_per_node,
            slots=4,
            overhead_budget=0.0,
            drills=True,
            rehearse_recovery=False,
        )
        self._workload = WorkloadTrial(config.checked(), self._arguments, self.folder / "disturbed", deadline_s=_END_S)
        disturbed = self._workload.run(lambda _: self._inject_all())
        undisturbed = JobConfig(nodes=self.shape.nodes, nproc_per_node=self.shape.nproc_per_node).checked()
        reference = WorkloadTrial(undisturbed, self._arguments, self.folder / "undisturbed", deadline_s=_END_S).run()
        self.problems += differences(reference, disturbed)

    @property
    def _stop_file(self) -> Path:
        return self.folder / "stop"

    @property
    def _arguments(self) -> list[str]:
        return ["--layout", self.shape.layout, "--steps", str(_STEPS), "--stop", str(self._stop_file), *_MODEL, *_NOISE]

    @property
    def _run_dir(self) -> RunDir:
        return self._workload.job.run_dir

    # --- one error ----------------------------------------------------------------------------------------------------

    def _inject_all(self) -> None:
        self._workload.await_step(4)
        for error in self.errors:
            if time.monotonic() > self.deadline:
                break
            outcome = self._inject_in_copy(error) if error.is_in_copy else self._inject(error)
            self.outcomes.append(outcome)
            self.tell(outcome)
        draft = self.folder / "stop.draft"
        draft.write_text(str(self._step_ahead()))
        draft.rename(self._stop_file)

    def _step_ahead(self) -> int:
        """A step that no rank has come to when it hears of it."""
        results = self._workload.results()
        return max(map(max, results.losses.values())) + _LAST_STEPS + int(_LAST_S / results.median_step_s())

    def _inject(self, error: Error) -> Outcome:
        began, mark = time.monotonic(), len(self._workload.events())
        if not error.in_redo:
            self._order(error, None)
        for audits in range(1, _AUDITS_AT_MOST + 1):
            self._audit(lambda: self._order(error, None) if error.in_redo and audits == 1 else None)  # noqa: B023
            events = self._workload.events()[mark:]
            if flipped := self._flipped(error, mark):
                return self._judge(error, flipped[0]["step"], events, audits, time.monotonic() - began)
        raise JobFailed(f"error {error.number} ({error.flips} of rank {error.rank}) came in none of {audits} audits")

    def _inject_in_copy(self, error: Error) -> Outcome:
        began, mark = time.monotonic(), len(self._workload.events())
        self._order(error, self._step_ahead())
        self._await(lambda: bool(self._flipped(error, mark)), "a snapshot to be hit")
        step = self._flipped(error, mark)[0]["step"]
        self._await(lambda: bool(self._refused(error, step)), "a holder to refuse it")
        self._await(lambda: self._is_over(error, step), "what follows from it")
        named = tuple({each["rank"] for each in self._refused(error, step)})
        took_s, expected = time.monotonic() - began, (error.rank,)
        return Outcome(
            error=error, step=step, stage=_AT_HOLDER, named=named, expected=expected, audits=0, took_s=took_s
        )

    def _flipped(self, error: Error, mark: int) -> list[Record]:
        events = self._workload.events()[mark:]
        return [each for each in events if each["what"] == "injected" and each.get("flips") == error.flips]

    def _refused(self, error: Error, step: int) -> list[Record]:
        """What holders say of the snapshot that was taken after this step."""
        refused = [each for each in self._workload.events() if each["what"] == "push_failed"]
        return [each for each in refused if each["refusal"] == Refusal.DAMAGED.value and each["step"] == step + 1]

    def _is_over(self, error: Error, step: int) -> bool:
        """What was damaged where it lies is missed; what was damaged on its way is sent again, and committed."""
        if error.flips == ARENA:
            missed = [each for each in self._workload.events() if each["what"] == "capture_missed"]
            return any((each["rank"], each["step"]) == (error.rank, step + 1) for each in missed)
        committed = self.ask(self._run_dir, "status")["watermark"]
        return committed is not None and committed > step

    def _order(self, error: Error, step: int | None) -> None:
        at = AUDITED if step is None else UPDATED
        wanted = {"rank": error.rank, "signal": 0, "at": at, "step": step, "flip": error.flips, "lasts": False}
        self.ask(self._run_dir, "kill", **wanted)

    def _audit(self, on_redo: Callable[[], None]) -> None:
        """Asks for an audit, and waits for its verdict. `on_redo` is called while ranks go back to compute the step
        again."""
        faults, verdicts = self._count("fault"), self._count(*_VERDICTS)
        self._await(self._is_asked, "an audit can be asked for")
        self._await(lambda: self._count("fault") > faults, "the step to be computed again")
        on_redo()
        self._await(lambda: self._count(*_VERDICTS) > verdicts, "the verdict")

    def _is_asked(self) -> bool:
        try:
            self.ask(self._run_dir, "step_audit")
        except ConfigError:
            return False  # ranks have not come back from the audit before
        return True

    def _count(self, *names: str) -> int:
        counted = Counter(event["what"] for event in self._workload.events())
        return sum(counted[name] for name in names)

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        self._workload.await_true(ready, what)

    def _judge(self, error: Error, step: int, events: list[Record], audits: int, took_s: float) -> Outcome:
        """What is said of the step in which the bit flipped: the version after it has the next number."""
        of_step = [each for each in events if each.get("step") == step + 1]
        differs = [each for each in of_step if each["what"] == "step_audit_differs"]
        found = [each for each in of_step if each["what"] == "corruption_found"]
        named = tuple(rank for each in found for rank in each["ranks"])
        by_vote = not differs and any(each["what"] in _VOTES and each["step"] > step for each in events)
        return Outcome(
            error=error,
            step=step,
            stage=differs[0]["stage"] if differs else _BY_VOTE if by_vote else "",
            named=named,
            expected=named if by_vote else (error.rank,) if self.shape.names(error.flips) else (),
            audits=audits,
            took_s=took_s,
        )
