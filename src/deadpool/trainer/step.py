"""One step of training as a context manager: its exit tells the job how the block ended."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

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
