"""`protect`, and the methods of Trainer through which it calls us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchtitan.trainer import Trainer

from deadpool.errors import ConfigError
from deadpool.integrations.library_check import is_protected_job
from deadpool.integrations.torchtitan.quiet import Quiet, open_loggers_later
from deadpool.integrations.torchtitan.relies_on import LIBRARIES
from deadpool.integrations.torchtitan.supported import require_supported
from deadpool.integrations.torchtitan.training import Training
from deadpool.trainer import current
from deadpool.trainer.interface import Job
from deadpool.trainer.library_job import LibraryJob, UnprotectedLibraryJob

_LOOP = "trainer.train()"

open_loggers_later()  # a trainer is built before it is protected


def protect(trainer: Trainer, /, *, force: bool = False, **objects: object) -> Job:
    """Makes `trainer.train()` survive the loss of nodes. Call it before `train`, which can then be called once.

    `objects` are further ones whose state training changes, as for `deadpool.protect`. The job that is returned has no
    steps of its own: those are the trainer's. A library in which something is missing that this relies on is refused,
    and with `force` accepted. In a script that DeadPool did not start nothing changes, and a note says so.
    """
    if isinstance(trainer, ProtectedTrainer):
        raise ConfigError("protect() was called twice for this trainer")
    if not is_protected_job(LIBRARIES, force=force):
        return UnprotectedLibraryJob(_LOOP)
    require_supported(trainer, objects)
    assert current.session is not None
    kind = type(trainer)
    trainer.__class__ = type(f"Protected{kind.__name__}", (ProtectedTrainer, kind), {})
    quiet, job = Quiet(trainer) if current.session.groups.detached else None, LibraryJob(_LOOP)
    vars(trainer)["_deadpool"] = Training(trainer, objects, quiet, job)
    return job


class ProtectedTrainer(Trainer):  # type: ignore[misc]
    _deadpool: Training

    def train(self) -> None:
        self._deadpool.run(super().train)

    def should_continue_training(self) -> bool:
        return self._deadpool.next_step(super().should_continue_training())

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        return super().batch_generator(self._deadpool.batches.begin(data_iterable))  # type: ignore[no-any-return]

    def train_step(self, data_iterator: Any) -> Any:
        self._deadpool.require_open_step()
        return super().train_step(data_iterator)
