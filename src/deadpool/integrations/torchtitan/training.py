"""One call of `train`, protected: where its steps begin, and where it is entered again after a fault."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torchtitan.tools.utils import GarbageCollection

from deadpool.errors import ConfigError
from deadpool.integrations.torchtitan.batches import Batches
from deadpool.integrations.torchtitan.chunked_loss import adapters_of
from deadpool.integrations.torchtitan.outside import watch_checkpoints, watch_metrics, watch_validation
from deadpool.integrations.torchtitan.position import Position
from deadpool.integrations.torchtitan.quiet import Quiet
from deadpool.trainer.job import Job
from deadpool.trainer.library_job import LibraryJob
from deadpool.trainer.loop import Moved, StepLoop
from deadpool.trainer.pool import Pool, join

_NO_END = 1 << 40
"""Steps of a training: torchtitan itself says when it has ended."""


class Training:
    def __init__(self, trainer: Any, objects: dict[str, object], quiet: Quiet | None, returned: LibraryJob) -> None:
        self._trainer, self._objects = trainer, dict[str, Any](objects)
        self._returned = returned
        self._quiet = quiet  # until this process is no spare any more
        self.batches = Batches(trainer.dataloader)
        self.job: Job | None = None
        self._loop: StepLoop
        self._position = Position(trainer, is_new=quiet is not None)
        watch_checkpoints(trainer.checkpointer, self)
        watch_metrics(trainer.metrics_processor, self)
        if trainer.config.validator.enable:
            watch_validation(trainer.validator, self)

    @property
    def is_dry(self) -> bool:
        return self.job is not None and self._loop.step is not None and self._loop.step.dry

    @property
    def loads_checkpoints(self) -> bool:
        """A process that takes part later gets its state from the others. A checkpoint that it finds may be newer than
        the one that the job began with, or half written. Nor is one read when `train` is entered again."""
        return self.job is None and self._quiet is None

    def pause(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return self.job.pause(reason) if self.job is not None else contextlib.nullcontext()

    def run(self, train: Callable[[], None]) -> None:
        if self.job is not None:
            raise ConfigError("train() was called a second time: a job has one loop")
        while True:
            try:
                train()
            except BaseException as error:
                if self.job is None or not self._loop.came_back(error):
                    raise
            else:
                if self.job is None:
                    return  # there was no step to do
                # Without an open step every rank has ended. With one the data ran out, and torchtitan has left its
                # loop: this step has done nothing, and is the last.
                self._position.ended = not self.is_dry
            if self._loop.enter() is None:
                return
            self._prepare_again()

    def next_step(self, is_more: bool) -> bool:
        """Called where torchtitan begins a step or ends its loop. A process that comes later stands at the first step
        of all then, and `train` has to be entered again."""
        if self.job is None:
            if not is_more:
                return False
            self._begin()
        if not is_more and not self.is_dry:
            self._position.ended = True
            if self._loop.enter() is not None:
                raise Moved
            return False
        self._loop.next_step()
        self.batches.begin_step()
        return True

    def require_open_step(self) -> None:
        if self.job is None or self._loop.step is None:
            raise ConfigError(
                f"{type(self._trainer).__bases__[1].__name__} calls train_step without asking should_continue_training "
                "before each step, so nobody knows where steps begin: ask it in `train`, as torchtitan's Trainer does"
            )

    def _begin(self) -> None:
        trainer, pool = self._trainer, join()
        assert isinstance(pool, Pool)
        self.batches.begin_step()
        objects: dict[str, Any] = {"position": self._position, "data": self.batches}
        for name, parts in (
            ("model", trainer.model_parts),
            ("optimizer", trainer.optimizers.optimizers),
            ("scheduler", trainer.lr_schedulers.schedulers),
        ):
            objects |= {f"{name}{index}": part for index, part in enumerate(parts)}
        self.job = pool.protect(adapters=adapters_of(trainer), **objects, **self._objects)
        self._returned.begin(self.job)
        self._loop = self.job.loop(lambda: 0 if self._position.ended else _NO_END)
        self._loop.enter()
        if self._position.was_loaded:
            raise Moved

    def _prepare_again(self) -> None:
        """The frames that the fault has cut off hold activations, and torchtitan has switched off the collection of
        garbage."""
        assert self.job is not None
        self._position.was_loaded = False
        GarbageCollection.collect("DeadPool enters the loop again")
        if self._quiet is not None and not self.job.rehearses:
            quiet, self._quiet, self._position.is_new = self._quiet, None, False
            quiet.end()
