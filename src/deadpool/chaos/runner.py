"""Injections one job as planned, and watches it heal. Bounded: a fault that has not healed in time ends the run.

The loop looks, ends what is to end, tends the processes, and injections when the next fault's moment has come.
Decisions are in `plan.py` (what and when), `fault_budget.py` (how much at once) and `injected_fault.py` (healed or
not).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deadpool.chaos.fault_budget import allows
from deadpool.chaos.faults import FAULTS
from deadpool.chaos.faults.fault import Fault, Scene
from deadpool.chaos.injected_fault import InjectedFault
from deadpool.chaos.plan import IN_RECOVERY, Intent, Moment
from deadpool.chaos.status_view import StatusPoller, Tail, newest_phase
from deadpool.control.launcher import LocalJob
from deadpool.errors import JobFailed

_LOOK_S = 0.03
_HEAL_S = 100.0
"""For a fault to heal, on top of how long it lasts. Several at once take as long as the slowest timeouts of the job."""
_FIRST_STEPS = 3

Tell = Callable[[InjectedFault], None]


class NotHealed(JobFailed):
    """A fault did not heal in time."""


@dataclass(slots=True)
class Runner:
    job: LocalJob
    scene: Scene
    poller: StatusPoller
    losses_at_once: int
    deadline: float  # by time.monotonic(), for all of it
    tell: Tell  # of each fault, when it was hit and when it has healed
    injected: list[InjectedFault] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    _tail: Tail = field(init=False)

    def __post_init__(self) -> None:
        self._tail = Tail(self.job.run_dir.events)

    def run(self, intents: list[Intent]) -> None:
        """All of them, until the last has healed."""
        self._await(lambda: self.scene.steps.done >= _FIRST_STEPS and self._is_calm(), "the first steps")
        for intent in intents:
            self._await_moment(intent)
            fault = self._await_aim(intent)
            self._inject(fault)
        self._await(lambda: not self.open, "the last faults to heal")

    @property
    def open(self) -> list[InjectedFault]:
        return [injected for injected in self.injected if injected.healed_at is None]

    def end_all(self) -> None:
        """Whatever still lasts: nobody can be told to end who stands still or is cut off."""
        for injected in self.open:
            if not injected.ended:
                injected.end(self.scene, time.time())
        self.scene.processes.resume_all()

    # --- when and whom -----------------------------------------------------------------------------------------------

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
        view = self.scene.view
        return not self.open and view.phase == "running" and view.protected

    def _await_aim(self, intent: Intent) -> Fault:
        """At the latest in a calm moment there is somebody whom it may injection."""
        fault = FAULTS[intent.kind](intent)
        self._await(lambda: self._can_inject(fault), f"somebody for {intent.kind}")
        return fault

    def _can_inject(self, fault: Fault) -> bool:
        endangered = (injected.fault.endangered for injected in self.open)
        is_aimed = bool(self.scene.view.seats) and fault.aim(self.scene)
        return is_aimed and allows(endangered, fault.endangered, losses_at_once=self.losses_at_once)

    def _inject(self, fault: Fault) -> None:
        beside = [injected.number for injected in self.open]
        during = newest_phase(self.events)
        injected = InjectedFault.begin(
            len(self.injected) + 1, fault, self.scene, now=time.time(), during=during, beside=beside
        )
        self.injected.append(injected)
        fault.inject(self.scene)
        self.tell(injected)

    # --- watching ----------------------------------------------------------------------------------------------------

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _HEAL_S
        while True:
            self._look()
            if ready():
                return
            if not self.open and time.monotonic() > deadline:
                raise NotHealed(f"{what} did not come within {_HEAL_S:g} s")
            time.sleep(_LOOK_S)

    def _look(self) -> None:
        self.scene.view = self.poller.view
        self.scene.steps.look()
        self.events += self._tail.new()
        if self.job.tend() is not None:
            raise JobFailed(f"the job ended: {self._last_word()}")
        if time.monotonic() > self.deadline:
            raise NotHealed("the time for all of it is over")
        now = time.time()
        for injected in self.open:
            self._look_at(injected, now)
        self.scene.processes.tend()

    def _look_at(self, injected: InjectedFault, now: float) -> None:
        if injected.is_to_end(now):
            injected.end(self.scene, now)
        if injected.has_healed(self.scene):
            injected.heal(self.events, self.scene.steps, now)
            self.tell(injected)
        elif now > injected.hit_at + injected.fault.lasts_s + _HEAL_S:
            raise NotHealed(
                f"fault {injected.number}, {injected.fault.kind} on {injected.fault.described}, has not healed"
            )

    def _last_word(self) -> str:
        self.events += self._tail.new()
        words = [event["reason"] for event in self.events if event["what"] in ("failed", "completed")]
        return words[-1] if words else "without a word"
