"""One step of training, and what its times were.

`Step` and `DryStep`: one step of training as a context manager: its exit tells the job how the block ended.

`StepLog` reports how long steps took before and after a fault, as events that `deadpool show picture` draws. Main
thread only.

Without a fault nothing is reported: only the durations of the last steps are remembered.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from deadpool.events.event import Event
from deadpool.protocol.messages import Report
from deadpool.trainer.process.session import Session

if TYPE_CHECKING:
    from deadpool.trainer.job import Job
    from deadpool.trainer.shares.shares import Share


class Step:
    """One training step, for `with step:` around the whole of it: forward, backward and optimizer.

    After a fault the block ends early, without an exception, and the loop yields the same step again. `step.number`
    counts from 0; `int(step)` is the same. `step.dry` is True in a spare's rehearsal, whose results are garbage.
    """

    def __init__(self, job: Job, number: int) -> None:
        self._job = job
        self.number = number
        self.dry = False
        self.entered = False

    def __enter__(self) -> Step:
        self.entered = True
        self._job.enter_step(self.number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._job.leave_step(error)

    def shares(self) -> Iterator[Share]:
        """The work that this rank has to do in this step: its own share, and before it those of ranks that it carries
        while their nodes are missing (docs/howto/shrink.md). Inside `with step:`:

            for share in step.shares():
                with share:
                    loss_of(model, next(share.data)).backward()
            optimizer.step()
        """
        return self._job.shares.of_step()

    def __index__(self) -> int:
        return self.number

    def __int__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"Step({self.number})"


class DryStep(Step):
    """A step that a spare rehearses. Its results are discarded, so an exception in its block is suppressed."""

    def __init__(self, job: Job, number: int) -> None:
        super().__init__(job, number)
        self.dry = True
        self.error: str | None = None  # not the exception: its frames would keep what the step has left open

    def __enter__(self) -> DryStep:
        self.entered = True
        self._job.enter_dry_step(self.number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._job.leave_dry_step()
        if isinstance(error, Exception):
            self.error = f"{type(error).__name__}: {error}"
            return True
        return False


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
