"""What a rank tells of its steps: how long each one took, what captures cost, and that it pauses. Main thread only."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterator

from deadpool.events.event import Event
from deadpool.protocol.messages import Paused, Report, Stepped
from deadpool.trainer.capture.capture_tasks import Budget, Cost
from deadpool.trainer.capture.meters import WaitMeter
from deadpool.trainer.process.session import Session

REMEMBERED = 64  # steps before a fault
AFTERWARDS = 32  # steps after it, or as many as there are in
AFTERWARDS_S = 10.0


class StepReports:
    def __init__(self, session: Session, budget: Budget, waits: WaitMeter) -> None:
        self._session, self._budget, self._waits = session, budget, waits
        self._log = StepLog(session)
        self._resumed_from: int | None = None
        self._told_at: float | None = None  # when a completed step was last told of; None: not since the last recovery
        self._pause: str | None = None

    def completed(self, number: int, step_s: float, costs: list[Cost]) -> None:
        """Tells that `number` steps are completed, the last one in `step_s`. What a capture has cost is known only when
        the device has got that far: one or two steps later."""
        session = self._session
        self._log.completed(number - 1, step_s)
        for cost in costs:
            self._budget.spend(cost.figures.stall_s, session.core.every)
        newest = next((cost for cost in reversed(costs) if not cost.given_up), None)
        self._budget.earn(step_s)
        told_before, self._told_at = self._told_at, time.monotonic()
        session.send(
            Stepped(
                generation=session.core.generation,
                number=number,
                step_s=step_s,
                stall_s=sum(cost.figures.stall_s for cost in costs),
                captured=newest.number if newest else None,
                copy_s=newest.figures.copy_s if newest else None,
                waited_s=self._waits.take(),
                cycle_s=self._told_at - told_before if told_before is not None else None,
            )
        )
        if self._resumed_from is not None:
            session.emit("resumed", step=self._resumed_from)
            self._resumed_from = None

    def unwound(self) -> None:
        self._log.report()

    def resumed(self, number: int) -> None:
        """Steps from `number` on are computed again."""
        self._resumed_from, self._told_at = number, None
        self._log.resumed()

    def close(self) -> None:
        self._log.close()

    @contextlib.contextmanager
    def pause(self, reason: str) -> Iterator[None]:
        outer = self._pause
        self.tell_pause(reason)
        try:
            yield
        finally:
            self.tell_pause(outer)

    def tell_pause(self, reason: str | None) -> None:
        self._pause = reason
        self._told_at = None  # what takes long on purpose is no step time
        self._session.send(Paused(reason=reason))


class StepLog:
    """How long steps took before and after a fault, as events that `deadpool show picture` draws. Without a fault
    nothing is reported: only the durations of the last steps are remembered."""

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
