"""What a training script sees of its job and of its steps. Both are the same with protection and without."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, SupportsIndex

from deadpool.journal.entry import Sink
from deadpool.trainer.loop import StepLoop


class Step(Protocol):
    """One training step, for `with step:` around the whole of it: forward, backward and optimizer.

    After a fault the block ends early, without an exception, and the loop yields the same step again. `step.number`
    counts from 0; `int(step)` is the same. `step.dry` is True in a spare's rehearsal, whose results are garbage.
    """

    number: int
    dry: bool

    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...
    def __index__(self) -> int: ...
    def __int__(self) -> int: ...

    def shares(self) -> Iterator[Any]:
        """The work that this rank has to do in this step: its own share, and before it those of ranks that it carries
        while their nodes are missing. Each share is a block inside of `with step:` (docs/howto/shrink.md)."""


class Job(Protocol):
    """A training loop, made by `deadpool.protect`. Without DeadPool it trains unprotected and has the same methods."""

    enabled: bool
    """Set to False on all ranks, no version is captured: to measure what protection costs."""

    @property
    def rehearses(self) -> bool:
        """This process is a spare that rehearses: nothing that it does may be seen outside."""

    def steps(self, count: int) -> Iterator[Step]:
        """Yields one step after the other, and a step again after a fault, until every rank has completed `count`.

        Put the whole body of the loop into `with step:`. A job has one loop, over the steps of all epochs.
        """

    def loop(self, count: int | Callable[[], int]) -> StepLoop:
        """The same steps for a loop that a library owns (deadpool.trainer.loop). A function instead of `count` is asked
        at each boundary: what it returns may be part of the protected state."""

    def pause(self, reason: str) -> AbstractContextManager[None]:
        """`with job.pause("evaluation"):` marks code that takes long on purpose, such as an evaluation or a checkpoint,
        in a step or between two.

        While a rank is in a pause, the job expects no step of any rank, so the hang timeout does not run. A real hang
        inside the pause is therefore not detected.
        """

    def log(self, step: SupportsIndex, /, **values: Any) -> None:
        """Logs small values of this step, such as a loss. Call it inside `with step:`, as often as you like.

        The values of each step are delivered exactly once, in order and without gaps, whichever machines die: to the
        sinks of `log_to`, or by default to the run folder (docs/journal.md). A key that is logged again in the same
        step gets the later value. A tensor of one element is read as by .item(), which waits for the device.
        """

    def log_to(self, *sinks: Sink) -> None:
        """Sets the sinks (`deadpool.journal`) that this rank's values go to. Call it before the loop.

        Without it the values go to the run folder.
        """

    def on_final(self, step: SupportsIndex, action: Callable[[], None]) -> None:
        """Runs `action` in this process once it is certain that `step` will never be computed again.

        If the process ends before that, the action is lost, and the event `actions_lost` names its step. Use `log` for
        values that must have no gaps.
        """

    def durable(self, step: int, path: str | os.PathLike[str]) -> None:
        """Tells the job that the script has saved a complete checkpoint of its own, after `step` steps, at `path`.

        It is enough that one rank calls it. If the job ever loses every copy of a rank's state, its error names the
        newest such checkpoint.
        """

    def digest(self) -> str:
        """A digest of parameters, buffers and optimizer state of the protected objects, as they are now: equal digests
        mean that these are bit-identical. Other state, such as the position of a loader, is not in it."""
