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
from deadpool.journal.unprotected import UnprotectedJournal
from deadpool.trainer.loop import StepLoop
from deadpool.trainer.loop_rules import LoopRules


class UnprotectedShare:
    """The only share of a step: without protection no rank carries another."""

    is_own = True

    def __init__(self, rank: int, objects: dict[str, object]) -> None:
        self.rank = rank
        self.__dict__.update(objects)

    def __enter__(self) -> UnprotectedShare:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class UnprotectedStep:
    """One training step that is computed once. It has the attributes of a protected Step."""

    dry = False

    def __init__(self, number: int, journal: UnprotectedJournal, share: UnprotectedShare) -> None:
        self.number, self._journal, self._share = number, journal, share
        self.entered = False

    def __enter__(self) -> UnprotectedStep:
        self.entered = True
        self._journal.enter_step(self.number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.leave_step(completed=error is None)

    def shares(self) -> Iterator[UnprotectedShare]:
        yield self._share

    def __index__(self) -> int:
        return self.number

    def __int__(self) -> int:
        return self.number


class UnprotectedJob:
    """A training loop without protection. It has the methods of a protected Job."""

    enabled = False
    rehearses = False

    def __init__(self, objects: dict[str, object], rank: int, made: dict[str, object]) -> None:
        from deadpool.snapshot.state import ProtectedState

        self._share = UnprotectedShare(rank, made)
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
                step = UnprotectedStep(number, self._journal, self._share)
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


class UnprotectedPool:
    """The place of this process in a job without protection. It has the attributes and methods of Pool."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))

    @classmethod
    def join(cls, backend: str) -> UnprotectedPool:
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
        shares: Mapping[str, Callable[[int], object]] | None = None,
        **objects: object,
    ) -> UnprotectedJob:
        """Returns a job that trains the objects unprotected. The rest is ignored: nothing is sent or recovers."""
        made = {name: make(self.rank) for name, make in (shares or {}).items()}
        return UnprotectedJob(objects, self.rank, made)
