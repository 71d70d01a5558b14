"""Injections that lie in wait in this process: an injected fault at a named moment, in a script that knows nothing of it.

The monitor thread arms them; the thread that reaches the moment injects them: it says so, in words that the agent will
find even if this is the last thing that this process does, and signals this very process. Where a whole node is meant,
its agent follows. While nothing is waiting, all that is left of this is a look at an empty tuple.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from deadpool.events import Event
from deadpool.protocol.messages import Injected, Injection, Report
from deadpool.trainer.step_moments import WATCHED, Watch

if TYPE_CHECKING:
    from deadpool.trainer.session import Session


class PendingInjections:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: tuple[Injection, ...] = ()
        self._watch: Watch | None = None

    def arm(self, injection: Injection) -> None:
        if injection not in self._waiting:  # it is told again with every seat
            self._waiting += (injection,)
            self._tell("injection_set", injection)

    # --- the moments, as the training loop passes them ---------------------------------------------------------------

    def enter_step(self, number: int) -> None:
        """One watch at a time: if several moments of a step are waiting, the first to come is the one that counts."""
        due = [injection for injection in self._waiting if injection.at in WATCHED and injection.step == number]
        if due:
            injection = min(due, key=lambda each: WATCHED.index(each.at or ""))
            self._watch = Watch(injection.at or "", lambda: self._inject(injection))
            self._watch.__enter__()

    def leave_step(self, *, completed: bool) -> None:
        """Before it is known whether the step counts."""
        if self._watch is not None:
            watch, self._watch = self._watch, None
            watch.close()
            if completed:
                watch.block_ends()

    def between(self, number: int) -> None:
        """The step counts, its snapshot has begun. What was to happen in it or before it will not happen any more."""
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
        """`cancelled`, which the copying thread asks before each piece, with the injected in it if there is one."""
        injection = self._awaiting_capture(number)
        if injection is None:
            return cancelled
        pieces = itertools.count(1)

        def asked() -> bool:
            if next(pieces) == 2:
                self._inject(injection)
            return cancelled()

        return asked

    def captured(self, number: int) -> None:
        """The copy was of one piece. It has not been declared yet: nobody knows of it."""
        injection = self._awaiting_capture(number)
        if injection is not None:
            self._inject(injection)

    def _awaiting_capture(self, number: int) -> Injection | None:
        return next((each for each in self._waiting if each.at == "capture" and each.step == number), None)

    # --- what comes of it --------------------------------------------------------------------------------------------

    def _inject(self, injection: Injection) -> None:
        if injection not in self._waiting:
            return
        self._disarm(injection)
        self._tell("injected", injection)
        self._session.send(Injected(injection=injection, hit=True))
        os.kill(os.getpid(), injection.signal)

    def _miss(self, injection: Injection) -> None:
        self._disarm(injection)
        self._tell("injection_missed", injection)
        self._session.send(Injected(injection=injection, hit=False))

    def _disarm(self, injection: Injection) -> None:
        with self._session.changed:  # the monitor thread arms under it
            self._waiting = tuple(each for each in self._waiting if each != injection)

    def _tell(self, what: str, injection: Injection) -> None:
        """Without a cause: whatever caused this generation, it was not that."""
        session = self._session
        detail = {"trainer": session.name, "at": injection.at, "signal": injection.signal}
        rank = session.role.rank if session.role is not None else None
        event = Event(what=what, rank=rank, step=injection.step, detail=detail)
        session.send(Report(records=(event.record(t=time.time()),)))
