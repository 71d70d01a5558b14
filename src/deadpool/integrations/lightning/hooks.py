"""`protect`, and the methods of Lightning's loops through which they call us."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from deadpool.errors import ConfigError
from deadpool.integrations.library_check import is_protected_job
from deadpool.integrations.lightning.quiet import Quiet
from deadpool.integrations.lightning.relies_on import LIBRARIES
from deadpool.integrations.lightning.supported import (
    require_supported_data,
    require_supported_fit,
    require_supported_trainer,
)
from deadpool.integrations.lightning.training import Training
from deadpool.trainer import current
from deadpool.trainer.interface import Job
from deadpool.trainer.library_job import LibraryJob, UnprotectedLibraryJob

_LOOP = "trainer.fit()"


def protect(trainer: Trainer, /, *, force: bool = False, **objects: object) -> Job:
    """Makes `trainer.fit()` survive the loss of nodes. Call it before `fit`, which can then be called once.

    `objects` are further ones whose state training changes, as for `deadpool.protect`. The job that is returned has no
    steps of its own: those are the trainer's. A library in which something is missing that this relies on is refused,
    and with `force` accepted. In a script that DeadPool did not start nothing changes, and a note says so.
    """
    if isinstance(trainer.fit_loop, ProtectedFitLoop):
        raise ConfigError("protect() was called twice for this trainer")
    if not is_protected_job(LIBRARIES, force=force):
        return UnprotectedLibraryJob(_LOOP)
    require_supported_trainer(trainer)
    assert current.default_group is not None
    job = LibraryJob(_LOOP)
    training = Training(trainer, objects, None if current.default_group.is_live() else Quiet(trainer), job)
    for loop, mixin in ((trainer.fit_loop, ProtectedFitLoop), (trainer.fit_loop.epoch_loop, ProtectedEpochLoop)):
        kind = type(loop)
        loop.__class__ = type(f"Protected{kind.__name__}", (mixin, kind), {})
        vars(loop)["_deadpool"] = training
    return job


class ProtectedFitLoop(_FitLoop):  # type: ignore[misc]
    _deadpool: Training
    epoch_loop: ProtectedEpochLoop

    def run(self) -> None:
        self.setup_data()
        if self.skip:
            return
        require_supported_fit(self.trainer, self._deadpool.objects)
        require_supported_data(self)
        self.reset()
        self.on_run_start()
        self._deadpool.run(self)
        self._restarting = False
        self.on_run_end()

    def run_epochs(self) -> None:
        """All that are left, from the start of one."""
        while not self.done:
            try:
                self.on_advance_start()
                self.advance()
                self.on_advance_end()
            except StopIteration:
                break
            finally:
                self.on_iteration_done()

    def finish_epoch(self) -> None:
        """The one that the restored progress says was under way."""
        self.epoch_loop.run_batches(self._data_fetcher)
        self.on_advance_end()


class ProtectedEpochLoop(_TrainingEpochLoop):  # type: ignore[misc]
    _deadpool: Training

    def run_batches(self, data_fetcher: Any) -> None:
        """All that are left in this epoch."""
        while not self.done:
            try:
                self.advance(data_fetcher)
                self.on_advance_end(data_fetcher)
            except StopIteration:
                break
            finally:
                self.on_iteration_done()

    def advance(self, data_fetcher: Any) -> None:
        if self.batch_progress.current.ready % self.trainer.accumulate_grad_batches == 0:
            self._deadpool.next_step()
        steps = self.global_step
        try:
            super().advance(data_fetcher)
        except StopIteration:
            raise ConfigError("on_train_batch_start returned -1: epochs that end early cannot be protected") from None
        self._require_no_gradients_kept(steps)

    def _require_no_gradients_kept(self, steps_before: int) -> None:
        """Refuses gradients that a batch leaves under optimization by hand, where each batch is a step: they are lost
        if the next is redone.
        """
        module = self.trainer.lightning_module
        if module.automatic_optimization or self.global_step > steps_before:
            return
        if any(parameter.grad is not None for parameter in module.parameters()):
            raise ConfigError(
                "training_step has computed gradients and no optimizer has stepped: gradients that are added up over "
                "batches by hand cannot be protected; use automatic optimization with accumulate_grad_batches"
            )

    def on_advance_end(self, data_fetcher: Any) -> None:
        """A rehearsal neither validates nor saves: it only tries out a step."""
        if not self._deadpool.is_dry:
            with self._deadpool.pause_if(self._should_check_val_fx(data_fetcher), "validation"):
                super().on_advance_end(data_fetcher)
