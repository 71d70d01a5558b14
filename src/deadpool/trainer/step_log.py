"""Reports how long steps took before and after a fault, as events that `deadpool show picture` draws. Main thread only.

Without a fault nothing is reported: only the durations of the last steps are remembered.
"""

from __future__ import annotations

import itertools
import time
from collections import deque

from deadpool.events.event import Event
from deadpool.protocol.messages import Report
from deadpool.trainer.process.session import Session

REMEMBERED = 64  # steps before a fault
AFTERWARDS = 32  # steps after it, or as many as there are in
AFTERWARDS_S = 10.0


class StepLog:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._first = 0  # number of the oldest step remembered
        self._ends: deque[float] = deque(maxlen=REMEMBERED + 1)  # when that step began, then when each step ended
        self._resumed_at: float | None = None

    def completed(self, number: int, seconds: float) -> None:
        """`seconds` is how long the step took in the loop."""
        now = time.time()
        if not self._ends:
            self._ends.append(now - seconds)
        self._ends.append(now)
        self._first = number + 2 - len(self._ends)
        if self._resumed_at is not None and self._is_enough(now):
            self.report()

    def resumed(self) -> None:
        self._ends.clear()
        self._resumed_at = time.time()

    def close(self) -> None:
        """The loop ends: steps after a fault that were not reported yet are reported now."""
        if self._resumed_at is not None:
            self.report()

    def report(self) -> None:
        """Sends the remembered durations and forgets them. The event has no cause, because it records no decision."""
        self._resumed_at = None
        if len(self._ends) < 2:
            return
        ends = list(self._ends)
        seconds = [round(later - earlier, 5) for earlier, later in itertools.pairwise(ends)]
        detail = {"began": ends[0], "seconds": seconds}
        event = Event(what="step_times", rank=self._session.rank, step=self._first, t=ends[-1], detail=detail)
        self._session.send(Report(records=(event.record(),)))
        self._ends.clear()

    def _is_enough(self, now: float) -> bool:
        assert self._resumed_at is not None
        return len(self._ends) > AFTERWARDS or now - self._resumed_at > AFTERWARDS_S
