"""Faults are injected into a job, one after the other.

`InjectedFault`: a fault that was injected: since when, whether the job has recovered from it, and what it cost. No
I/O.

`NotHealed` and `Runner` inject the planned faults into one job, and wait for each recovery. A fault that takes too
long ends the run.

The loop reads the status, ends faults that last for a while, replaces dead nodes, and injects the next fault when
its moment has come. Decisions are made in `plan.py`: what and when, and how many at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deadpool.control.launch.launcher import LocalJob
from deadpool.errors import JobFailed
from deadpool_lab.chaos.checks import Span
from deadpool_lab.chaos.faults import FAULTS
from deadpool_lab.chaos.faults.fault import Fault, FaultContext
from deadpool_lab.chaos.plan import IN_RECOVERY, Intent, Moment, allows
from deadpool_lab.chaos.status_view import StatusPoller, StepProgress, Tail, newest_phase

_STEPS_ON = 3
"""Steps to be committed after the fault: one was under way, and a script that is to raise does so in the next."""

Record = dict[str, Any]


@dataclass(slots=True)
class InjectedFault:
    number: int
    fault: Fault
    hit_at: float
    at_step: int  # a step that no rank had completed then; it may have been under way
    during: str  # the phase of the job then
    beside: list[int]  # faults that were open then
    mark: int  # the version that has to be complete for a recovery
    renewed_at: float  # when it began or ended: only a status after that counts
    ended: bool = False
    healed_at: float | None = None
    costs: Record = field(default_factory=dict)

    @classmethod
    def begin(
        cls, number: int, fault: Fault, context: FaultContext, *, now: float, during: str, beside: list[int]
    ) -> InjectedFault:
        begun = context.steps.begun
        return cls(
            number=number,
            fault=fault,
            hit_at=now,
            at_step=begun,
            during=during,
            beside=beside,
            mark=begun + _STEPS_ON,
            renewed_at=now,
            ended=fault.lasts_s == 0.0,
        )

    def is_to_end(self, context: FaultContext, now: float) -> bool:
        is_over = now >= self.hit_at + self.fault.lasts_s or (self.fault.held and self._trains(context))
        return not self.ended and is_over

    def end(self, context: FaultContext, now: float) -> None:
        self.fault.end(context)
        self.ended, self.renewed_at = True, now
        self.mark = max(self.mark, context.steps.begun + _STEPS_ON)

    def has_healed(self, context: FaultContext) -> bool:
        return self.ended and self._trains(context) and self.fault.is_over(context)

    def _trains(self, context: FaultContext) -> bool:
        view = context.view
        committed = view.watermark >= self.mark and view.at > self.renewed_at
        return view.phase == "running" and view.protected and committed

    def heal(self, events: Sequence[Record], steps: StepProgress, now: float) -> None:
        self.healed_at = now
        inside = [event for event in events if self.hit_at <= event.get("t", 0.0) <= now]
        plans = [event for event in inside if event["what"] == "planned"]
        self.costs = {
            "first_step_s": round(self._first_step_at(inside, steps) - self.hit_at, 3),
            "recovery_s": round(self._ended_at(inside, steps, now) - self.hit_at, 3),
            "pause_s": round(steps.longest_pause_s(self.hit_at, now), 3),
            "plans": len(plans),
            "bad_copies_found": sum(event["what"] == "source_failed" for event in inside),
            "steps_redone": max((plan["lost_steps"] for plan in plans), default=0),
        }

    def _ended_at(self, inside: Sequence[Record], steps: StepProgress, now: float) -> float:
        """When the event came that ends its recovery, where it has one; else the first new step."""
        ends = [event["t"] for event in inside if event["what"] == self.fault.ends_with]
        if ends:
            return float(ends[0])
        if self.fault.ends_with is not None:
            return now
        return self._first_step_at(inside, steps)

    def _first_step_at(self, inside: Sequence[Record], steps: StepProgress) -> float:
        """The first completed step that began after the fault, or after the last plan. A fault in the background causes
        no plan: those that come meanwhile are because of others."""
        resumed = [event["t"] for event in inside if event["what"] == "resumed" and not self.fault.in_background]
        return float(max([steps.ends[self.at_step + 1], *resumed]))

    @property
    def span(self) -> Span:
        """Returns the time from its begin to its end; one that does not last ends when the job has recovered."""
        return Span(self.hit_at, self.renewed_at if self.fault.lasts_s else self.healed_at or self.hit_at)

    def record(self) -> Record:
        return {
            "number": self.number,
            "kind": self.fault.kind,
            "target": self.fault.described,
            "at_step": self.at_step,
            "during": self.during,
            "beside": self.beside,
            "moment": self.fault.intent.moment.value,
            "lasts_s": self.fault.lasts_s,
            **self.costs,
        }


_POLL_S = 0.03
_HEAL_S = 100.0
"""Time to recover from a fault, on top of how long the fault lasts. It covers the slowest timeouts of the job."""
_FIRST_STEPS = 3

Tell = Callable[[InjectedFault], None]


class NotHealed(JobFailed):
    """The job did not recover from a fault in time."""


@dataclass(slots=True)
class Runner:
    job: LocalJob
    context: FaultContext
    poller: StatusPoller
    losses_at_once: int
    deadline: float  # of the whole run, by time.monotonic()
    tell: Tell  # called for each fault when it is injected, and when the job has recovered
    until: float | None = None  # no fault comes after that time, by time.monotonic(); None: all of them come
    injected: list[InjectedFault] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    _tail: Tail = field(init=False)

    def __post_init__(self) -> None:
        self._tail = Tail(self.job.run_dir.events)

    def run(self, intents: list[Intent]) -> None:
        """Injects all of them, and returns when the job has recovered from the last."""
        self._await(lambda: self.context.steps.done >= _FIRST_STEPS and self._is_calm(), "the first steps")
        for intent in intents:
            if self.until is not None and time.monotonic() > self.until:
                break
            self._await_moment(intent)
            fault = self._await_aim(intent)
            self._inject(fault)
        self._await(lambda: not self.open, "recovery from the last faults")

    @property
    def open(self) -> list[InjectedFault]:
        return [injected for injected in self.injected if injected.healed_at is None]

    @property
    def _in_the_way(self) -> list[InjectedFault]:
        """Open faults that others wait for."""
        alone = self.context.timing.one_by_one
        return [injected for injected in self.open if alone or not injected.fault.in_background]

    def end_all(self) -> None:
        """Ends all faults that still last: a process that is stopped or cut off could not be told to end."""
        for injected in self.open:
            if not injected.ended:
                injected.end(self.context, time.time())
        self.context.processes.resume_all()

    # --- when, and what to hit ---------------------------------------------------------------------------------------

    def _await_moment(self, intent: Intent) -> None:
        if intent.moment is Moment.CALM:
            self._await(self._is_calm, "calm")
        elif intent.moment in IN_RECOVERY:
            self._await(lambda: self._has_come(intent.moment) or self._is_calm(), f"{intent.moment.value} or calm")
        due = time.monotonic() + intent.delay_s
        self._await(lambda: time.monotonic() >= due, "its time")

    def _has_come(self, moment: Moment) -> bool:
        hit_at = self.injected[-1].hit_at
        return any(event["what"] == moment.value and event.get("t", 0.0) > hit_at for event in self.events[-50:])

    def _is_calm(self) -> bool:
        view = self.context.view
        return not self._in_the_way and view.phase == "running" and view.protected

    def _await_aim(self, intent: Intent) -> Fault:
        """Waits for something that the fault may hit, which is there in a calm moment at the latest."""
        fault = FAULTS[intent.kind](intent)
        self._await(lambda: self._can_inject(fault), f"a target for {intent.kind}")
        return fault

    def _can_inject(self, fault: Fault) -> bool:
        endangered = (injected.fault.endangered for injected in self._in_the_way)
        is_aimed = bool(self.context.view.seats) and fault.aim(self.context)
        return is_aimed and allows(endangered, fault.endangered, losses_at_once=self.losses_at_once)

    def _inject(self, fault: Fault) -> None:
        beside = [injected.number for injected in self.open]
        during = newest_phase(self.events)
        injected = InjectedFault.begin(
            len(self.injected) + 1, fault, self.context, now=time.time(), during=during, beside=beside
        )
        self.injected.append(injected)
        fault.inject(self.context)
        self.tell(injected)

    # --- watching ----------------------------------------------------------------------------------------------------

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _HEAL_S
        while True:
            self._poll()
            if ready():
                return
            if not self.open and time.monotonic() > deadline:
                raise NotHealed(f"{what} did not come within {_HEAL_S:g} s")
            time.sleep(_POLL_S)

    def _poll(self) -> None:
        self.context.view = self.poller.view
        self.context.steps.read_new()
        self.events += self._tail.new()
        if self.job.poll() is not None:
            raise JobFailed(f"the job ended: {self._last_word()}")
        if time.monotonic() > self.deadline:
            raise NotHealed("the time limit of the whole run is over")
        now = time.time()
        for injected in self.open:
            self._follow(injected, now)
        self.context.processes.replace_dead()

    def _follow(self, injected: InjectedFault, now: float) -> None:
        if injected.is_to_end(self.context, now):
            injected.end(self.context, now)
        if injected.has_healed(self.context):
            injected.heal(self.events, self.context.steps, now)
            self.tell(injected)
        elif now > injected.hit_at + injected.fault.lasts_s + _HEAL_S:
            raise NotHealed(
                f"fault {injected.number}, {injected.fault.kind} on {injected.fault.described}, has not recovered"
            )

    def _last_word(self) -> str:
        self.events += self._tail.new()
        words = [event["reason"] for event in self.events if event["what"] in ("failed", "completed")]
        return words[-1] if words else "without a reason"
