"""The public calls for a script that DeadPool did not start: under plain python or torchrun it trains unprotected."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, SupportsIndex

import torch.distributed as dist

from deadpool.journal.entry import Sink
from deadpool.journal.step_values import UnprotectedJournal
from deadpool.trainer.loop import LoopRules, StepLoop
from deadpool.trainer.shares.shares import Makers, SharesDone, make_own


class UnprotectedShare:
    """The only share of a step: without protection no rank carries another."""

    is_own = True

    def __init__(self, done: SharesDone, rank: int, objects: Mapping[str, object]) -> None:
        self._done, self.rank, self.entered = done, rank, False
        self.__dict__.update(objects)

    def __enter__(self) -> UnprotectedShare:
        self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self._done.left(self.rank)


class UnprotectedShares:
    """Makes the shares of steps."""

    def __init__(self, rank: int, objects: Mapping[str, object]) -> None:
        self._rank, self._objects = rank, objects
        self.done = SharesDone()

    def of_step(self) -> Iterator[UnprotectedShare]:
        self.done.ask([self._rank])
        share = UnprotectedShare(self.done, self._rank, self._objects)
        yield share
        self.done.require_entered(self._rank, share.entered)


class UnprotectedStep:
    """One training step that is computed once. It has the attributes of a protected Step."""

    dry = False

    def __init__(self, number: int, journal: UnprotectedJournal, shares: UnprotectedShares) -> None:
        self.number, self._journal, self._shares = number, journal, shares
        self.entered = False

    def __enter__(self) -> UnprotectedStep:
        self.entered = True
        self._journal.enter_step(self.number)
        self._shares.done.enter_step(self.number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._shares.done.require_all()
        self._journal.leave_step(completed=error is None)

    def shares(self) -> Iterator[UnprotectedShare]:
        return self._shares.of_step()

    def __index__(self) -> int:
        return self.number

    def __int__(self) -> int:
        return self.number


class UnprotectedJob:
    """A training loop without protection. It has the methods of a protected Job."""

    enabled = False
    rehearses = False

    def __init__(self, objects: dict[str, object], rank: int, made: dict[str, object]) -> None:
        from deadpool.snapshot.state.state import ProtectedState

        self._shares = UnprotectedShares(rank, made)
        self._state = ProtectedState({**objects, **made}, replicas={}, rank=rank, node_of=lambda _: 0)
        self._journal = UnprotectedJournal(rank)
        self._rules = LoopRules()

    def steps(self, count: int) -> Iterator[UnprotectedStep]:
        """Yields steps 0 to `count` - 1, each once. A job has one loop."""
        self._rules.begin_loop()
        return self._loop(count)

    def _loop(self, count: int) -> Generator[UnprotectedStep, None, None]:
        try:
            for number in range(count):
                step = UnprotectedStep(number, self._journal, self._shares)
                yield step
                self._rules.check(step)
        finally:
            self._journal.close()

    def loop(self, count: int | Callable[[], int]) -> StepLoop:
        """The same steps for a loop that a library owns."""
        self._rules.begin_loop()
        return StepLoop(self._loop(count() if callable(count) else count), lambda: None)

    def pause(self, reason: str) -> contextlib.AbstractContextManager[None]:
        """Does nothing: no hang timeout applies."""
        return contextlib.nullcontext()

    def log(self, step: SupportsIndex, /, **values: Any) -> None:
        """Logs small values of this step. They are written when its block ends, because no step is computed again."""
        self._journal.log(operator.index(step), values)

    def log_to(self, *sinks: Sink) -> None:
        """Sets, before the loop, the sinks that this rank's values go to."""
        self._journal.log_to(sinks)

    def on_final(self, step: SupportsIndex, action: Callable[[], None]) -> None:
        """Runs `action` at once: without recovery a step is final as soon as it is computed."""
        action()

    def durable(self, step: int, path: str | os.PathLike[str]) -> None:
        """Does nothing: there is no job that could name the checkpoint."""

    def digest(self) -> str:
        """A digest of parameters, buffers and optimizer state of the protected objects, as they are now."""
        return self._state.digest()


class UnprotectedRank:
    """The place of this process in a job without protection. It has the attributes and methods of JobRank."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))

    @classmethod
    def join(cls, backend: str) -> UnprotectedRank:
        if "RANK" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return cls()

    def protect(
        self,
        *,
        replicated: object = None,
        adapters: object = (),
        shares: Makers | None = None,
        **objects: object,
    ) -> UnprotectedJob:
        """Returns a job that trains the objects unprotected. The rest is ignored: nothing is sent or recovers."""
        return UnprotectedJob(objects, self.rank, make_own(shares or {}, objects, self.rank))
