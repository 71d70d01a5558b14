"""The same calls without DeadPool around them: under plain python or torchrun a script still trains."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, SupportsIndex

import torch.distributed as dist

from deadpool.journal.entry import Sink
from deadpool.journal.unprotected import UnprotectedJournal
from deadpool.trainer.loop_rules import LoopRules


class UnprotectedStep:
    dry = False

    def __init__(self, number: int, journal: UnprotectedJournal) -> None:
        self.number, self._journal = number, journal
        self.entered = False

    def __enter__(self) -> UnprotectedStep:
        self.entered = True
        self._journal.enter_step(self.number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.leave_step(completed=error is None)

    def __index__(self) -> int:
        return self.number

    def __int__(self) -> int:
        return self.number


class UnprotectedJob:
    enabled = False

    def __init__(self, objects: dict[str, object], rank: int) -> None:
        from deadpool.snapshot.state import ProtectedState

        self._state = ProtectedState(objects, replicas={}, rank=rank, node_of=lambda _: 0)
        self._journal = UnprotectedJournal(rank)
        self._rules = LoopRules()

    def steps(self, count: int) -> Iterator[UnprotectedStep]:
        self._rules.begin_loop()
        return self._loop(count)

    def _loop(self, count: int) -> Iterator[UnprotectedStep]:
        try:
            for number in range(count):
                step = UnprotectedStep(number, self._journal)
                yield step
                self._rules.check(step)
        finally:
            self._journal.close()

    def pause(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def log(self, step: SupportsIndex, /, **values: Any) -> None:
        """Written at the end of the step: nothing of it will be computed again."""
        self._journal.log(operator.index(step), values)

    def log_to(self, *sinks: Sink) -> None:
        self._journal.log_to(sinks)

    def on_final(self, step: SupportsIndex, action: Callable[[], None]) -> None:
        action()

    def durable(self, step: int, path: str | os.PathLike[str]) -> None:
        """Nobody has to know."""

    def digest(self) -> str:
        return self._state.digest()


class UnprotectedPool:
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

    def protect(self, *, replicated: object = None, **objects: object) -> UnprotectedJob:
        """Nothing is sent anywhere, so what others hold too makes no difference."""
        return UnprotectedJob(objects, self.rank)
