"""How long steps took before and after a fault, as events: what a picture of it is drawn from. Main thread only.

In quiet times nothing is told: only the last steps are remembered, for the case that a fault comes.
"""

from __future__ import annotations

import itertools
import time
from collections import deque

from deadpool.events import Event
from deadpool.protocol.messages import Report
from deadpool.trainer.session import Session

REMEMBERED = 64  # steps before a fault
AFTERWARDS = 32  # steps after it, or as many as there are in
AFTERWARDS_S = 10.0


class StepLog:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._first = 0  # number of the oldest step remembered
        self._ends: deque[float] = deque(maxlen=REMEMBERED + 1)  # its beginning, then the end of each
        self._resumed_at: float | None = None

    def completed(self, number: int, seconds: float) -> None:
        """`seconds`: since this step began, in the loop's eyes."""
        now = time.time()
        if not self._ends:
            self._ends.append(now - seconds)
        self._ends.append(now)
        self._first = number + 2 - len(self._ends)
        if self._resumed_at is not None and self._is_enough(now):
            self.tell()

    def resumed(self) -> None:
        self._ends.clear()
        self._resumed_at = time.time()

    def close(self) -> None:
        """The loop ends: what is owed is told now."""
        if self._resumed_at is not None:
            self.tell()

    def tell(self) -> None:
        """What is remembered, and is forgotten then. Not part of a fault's story: nobody decided anything."""
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
