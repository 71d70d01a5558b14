"""Strikes that lie in wait in this process: an injected fault at a named moment, in a script that knows nothing of it.

The monitor thread arms them; the thread that reaches the moment springs them: it says so, in words that the agent will
find even if this is the last thing that this process does, and signals this very process. Where a whole node is meant,
its agent follows. While nothing is armed, all that is left of this is a look at an empty tuple.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from deadpool.events import Event
from deadpool.protocol.messages import Report, Sprung, Strike
from deadpool.trainer.step_moments import WATCHED, Watch

if TYPE_CHECKING:
    from deadpool.trainer.session import Session


class Ambushes:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._armed: tuple[Strike, ...] = ()
        self._watch: Watch | None = None

    def arm(self, strike: Strike) -> None:
        if strike not in self._armed:  # it is told again with every seat
            self._armed += (strike,)
            self._tell("ambush_set", strike)

    # --- the moments, as the training loop passes them ---------------------------------------------------------------

    def enter_step(self, number: int) -> None:
        """One watch at a time: if several moments of a step are armed, the first to come is the one that counts."""
        due = [strike for strike in self._armed if strike.at in WATCHED and strike.step == number]
        if due:
            strike = min(due, key=lambda each: WATCHED.index(each.at or ""))
            self._watch = Watch(strike.at or "", lambda: self._spring(strike))
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
        for strike in self._armed:
            if strike.at == "between" and strike.step == number:
                self._spring(strike)
            elif strike.step is not None and strike.step <= number:
                self._miss(strike)

    def recovered(self) -> None:
        for strike in self._armed:
            if strike.at == "recovered":
                self._spring(strike)

    def capturing(self, number: int, cancelled: Callable[[], bool]) -> Callable[[], bool]:
        """`cancelled`, which the copying thread asks before each piece, with the ambush in it if there is one."""
        strike = self._awaiting_capture(number)
        if strike is None:
            return cancelled
        pieces = itertools.count(1)

        def asked() -> bool:
            if next(pieces) == 2:
                self._spring(strike)
            return cancelled()

        return asked

    def captured(self, number: int) -> None:
        """The copy was of one piece. It has not been declared yet: nobody knows of it."""
        strike = self._awaiting_capture(number)
        if strike is not None:
            self._spring(strike)

    def _awaiting_capture(self, number: int) -> Strike | None:
        return next((each for each in self._armed if each.at == "capture" and each.step == number), None)

    # --- what comes of it --------------------------------------------------------------------------------------------

    def _spring(self, strike: Strike) -> None:
        if strike not in self._armed:
            return
        self._disarm(strike)
        self._tell("ambush", strike)
        self._session.send(Sprung(strike=strike, hit=True))
        os.kill(os.getpid(), strike.signal)

    def _miss(self, strike: Strike) -> None:
        self._disarm(strike)
        self._tell("ambush_missed", strike)
        self._session.send(Sprung(strike=strike, hit=False))

    def _disarm(self, strike: Strike) -> None:
        with self._session.changed:  # the monitor thread arms under it
            self._armed = tuple(each for each in self._armed if each != strike)

    def _tell(self, what: str, strike: Strike) -> None:
        """Without a cause: whatever caused this generation, it was not that."""
        session = self._session
        detail = {"trainer": session.name, "at": strike.at, "signal": strike.signal}
        rank = session.role.rank if session.role is not None else None
        event = Event(what=what, rank=rank, step=strike.step, detail=detail)
        session.send(Report(records=(event.record(t=time.time()),)))
