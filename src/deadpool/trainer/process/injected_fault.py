"""Injects faults at named moments of training, in a script that knows nothing of them.

The monitor thread adds injections; the thread that reaches the moment injects the fault. It first reports the injection
in a message that the agent finds even if this process dies right after, and then sends the signal to its own process.
If the fault is meant for the whole node, the agent follows. While no injection waits, the only cost is a check of an
empty tuple.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from deadpool.events.event import Event
from deadpool.protocol.messages import Injected, Injection, Report
from deadpool.trainer.process.step_moments import WATCHED, MomentWatch

if TYPE_CHECKING:
    from deadpool.trainer.process.session import Session


class InjectionTriggers:
    """The injections that wait for their moment in this process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: tuple[Injection, ...] = ()
        self._watch: MomentWatch | None = None

    def add(self, injection: Injection) -> None:
        if injection not in self._waiting:  # every seat brings it again
            self._waiting += (injection,)
            self._report("injection_set", injection)

    # --- the moments, as the training loop passes them ---------------------------------------------------------------

    def enter_step(self, number: int) -> None:
        """Watches for one moment: if several of this step are waited for, the one that comes first."""
        due = [injection for injection in self._waiting if injection.at in WATCHED and injection.step == number]
        if due:
            injection = min(due, key=lambda each: WATCHED.index(each.at or ""))
            self._watch = MomentWatch(injection.at or "", lambda: self._inject(injection))
            self._watch.__enter__()

    def leave_step(self, *, completed: bool) -> None:
        """The step's block has ended; whether the step counts is not known yet."""
        if self._watch is not None:
            watch, self._watch = self._watch, None
            watch.close()
            if completed:
                watch.block_ends()

    def between(self, number: int) -> None:
        """The step counts and its snapshot has begun. Moments of this step and of earlier ones are missed for good."""
        for injection in self._waiting:
            if injection.at == "between" and injection.step == number:
                self._inject(injection)
            elif injection.step is not None and injection.step <= number:
                self._miss(injection)

    def recovered(self) -> None:
        for injection in self._waiting:
            if injection.at == "recovered":
                self._inject(injection)

    def capturing(self, number: int, cancelled: Callable[[], bool]) -> Callable[[], bool]:
        """Wraps `cancelled`, which the copying thread calls before each piece, so that a waiting fault is injected
        before the second piece."""
        injection = self._awaiting_capture(number)
        if injection is None:
            return cancelled
        pieces = itertools.count(1)

        def inject_before_second_piece() -> bool:
            if next(pieces) == 2:
                self._inject(injection)
            return cancelled()

        return inject_before_second_piece

    def captured(self, number: int) -> None:
        """Injects the fault after a copy of a single piece. The copy has not been declared yet, so no process has
        learnt of it."""
        injection = self._awaiting_capture(number)
        if injection is not None:
            self._inject(injection)

    def _awaiting_capture(self, number: int) -> Injection | None:
        return next((each for each in self._waiting if each.at == "capture" and each.step == number), None)

    # --- injecting ---------------------------------------------------------------------------------------------------

    def _inject(self, injection: Injection) -> None:
        if injection not in self._waiting:
            return
        self._remove(injection)
        self._report("injected", injection)
        self._session.send(Injected(injection=injection, hit=True))
        os.kill(os.getpid(), injection.signal)

    def _miss(self, injection: Injection) -> None:
        self._remove(injection)
        self._report("injection_missed", injection)
        self._session.send(Injected(injection=injection, hit=False))

    def _remove(self, injection: Injection) -> None:
        with self._session.changed:  # the monitor thread adds under this lock
            self._waiting = tuple(each for each in self._waiting if each != injection)

    def _report(self, what: str, injection: Injection) -> None:
        """The event has no cause: it did not follow from the fault that caused this generation."""
        session = self._session
        detail = {"trainer": session.name, "at": injection.at, "signal": injection.signal}
        rank = session.role.rank if session.role is not None else None
        event = Event(what=what, rank=rank, step=injection.step, detail=detail)
        session.send(Report(records=(event.record(t=time.time()),)))
