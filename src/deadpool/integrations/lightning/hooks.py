"""`protect` for Lightning, and what it refuses.

`ProtectedFitLoop` and `ProtectedEpochLoop`: `protect`, and the methods of Lightning's loops through which they call
us.

`require_supported_trainer`, `require_supported_fit` and `require_supported_data`: what cannot be protected, because
a step could not be redone exactly. It is refused with the reason.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.callbacks.weight_averaging import WeightAveraging
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from deadpool.integrations.library_check import is_protected_job
from deadpool.integrations.lightning.refusals import LightningRefusal
from deadpool.integrations.lightning.relies_on import LIBRARIES
from deadpool.integrations.lightning.training import Quiet, Training
from deadpool.integrations.refusals import Refused
from deadpool.trainer import current
from deadpool.trainer.interface import Job
from deadpool.trainer.library_job import LibraryJob, UnprotectedLibraryJob

_CALLBACKS = (
    *(BaseFinetuning, BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder),
    *(StochasticWeightAveraging, Timer, WeightAveraging),
)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def require_supported_trainer(trainer: Any) -> None:
    if Trainer not in type(trainer).__mro__:  # that of pytorch_lightning is another class
        raise Refused(
            LightningRefusal.OTHER_TRAINER, f"{type(trainer)} cannot be protected: use Trainer of the package lightning"
        )
    for is_used, refusal, what, instead in (
        (
            type(trainer.strategy) not in (DDPStrategy, ModelParallelStrategy),
            LightningRefusal.STRATEGY,
            type(trainer.strategy).__name__,
            "use strategy='ddp' or ModelParallelStrategy (FSDP2, tensor parallel)",
        ),
        (
            trainer.world_size == 1,
            LightningRefusal.ONE_RANK,
            "a job of one rank",
            "start it with `deadpool run --nodes 2`, and say num_nodes=2",
        ),
        (
            bool(trainer.reload_dataloaders_every_n_epochs),
            LightningRefusal.RELOADED_LOADERS,
            "reload_dataloaders_every_n_epochs",
            "leave it out",
        ),
        (bool(trainer.overfit_batches), LightningRefusal.OVERFIT, "overfit_batches", "use limit_train_batches"),
        (
            getattr(trainer, "_val_check_time_interval", None) is not None,
            LightningRefusal.VALIDATION_BY_TIME,
            "validation by time",
            "count batches",
        ),
    ):
        if is_used:
            raise Refused(refusal, f"{what} cannot be protected with lightning.Trainer: {instead}")
    for callback in trainer.callbacks:
        if isinstance(callback, _CALLBACKS):
            name = type(callback).__name__
            raise Refused(
                LightningRefusal.CALLBACKS,
                f"the callback {name} cannot be protected: it changes the loop, the model or the time",
            )


def require_supported_fit(trainer: Any, objects: dict[str, Any]) -> None:
    """Called when everything is set up, before the first step. `objects` are those that the user protects himself."""
    module = trainer.lightning_module
    if is_overridden("configure_callbacks", module):
        raise Refused(
            LightningRefusal.CONFIGURE_CALLBACKS,
            "configure_callbacks cannot be protected: give the callbacks to Trainer",
        )
    known = {id(each) for each in objects.values()}
    holders = [("the module", module, False), ("the data module", trainer.datamodule, False)]
    holders += [(f"the callback {type(each).__name__}", each, True) for each in trainer.callbacks]
    for what, holder, is_callback in holders:
        for name, value in vars(holder).items() if holder is not None else ():
            if id(value) not in known:
                _require_known_attribute(what, name, value, is_callback=is_callback)


def _require_known_attribute(what: str, name: str, value: Any, *, is_callback: bool) -> None:
    if isinstance(value, _GENERATORS):
        raise Refused(
            LightningRefusal.OWN_GENERATOR,
            f"{what} has a generator of its own ({name}): protect(trainer, {name}=...) takes it, or use torch's",
        )
    if is_callback and isinstance(value, nn.Module) and not isinstance(value, LightningModule):
        raise Refused(
            LightningRefusal.MODEL_OF_CALLBACK,
            f"{what} holds a model ({name}): protect(trainer, {name}=...) takes it, if all ranks have the same",
        )


def require_tried(fit_loop: Any) -> None:
    """What is built and was never tried with a fault. `force` accepts it."""
    loaders = len(fit_loop._combined_loader.flattened)
    for is_used, refusal, what in (
        (bool(fit_loop.trainer.ckpt_path), LightningRefusal.RESUMED, "fit(ckpt_path=...)"),
        (fit_loop._data_fetcher.length is None, LightningRefusal.NO_LENGTH, "an IterableDataset without a length"),
        (loaders > 1, LightningRefusal.SEVERAL_LOADERS, f"{loaders} training loaders at once"),
    ):
        if is_used:
            raise Refused(
                refusal,
                f"{what} cannot be protected with lightning.Trainer yet: no fault was tried with it; use "
                "protect(trainer, force=True), and compare the losses once with those of an unprotected run",
            )


def require_supported_data(fit_loop: Any) -> None:
    if isinstance(fit_loop._data_fetcher, _DataLoaderIterDataFetcher):
        raise Refused(
            LightningRefusal.DATALOADER_ITER,
            "a training_step that takes dataloader_iter cannot be protected: let it take batches",
        )


def require_supported_validation(val_loop: Any) -> None:
    """Refuses loaders of a validation, which are known once it has run."""
    combined = val_loop._combined_loader
    if any(getattr(each, "persistent_workers", False) for each in (combined.flattened if combined is not None else ())):
        raise Refused(
            LightningRefusal.PERSISTENT_VALIDATION,
            "persistent_workers of a validation loader cannot be protected: a seed is drawn in the first validation "
            "only, and a process that takes part later would draw one; leave it out there",
        )


_LOOP = "trainer.fit()"


def protect(trainer: Trainer, /, *, force: bool = False, **objects: object) -> Job:
    """Makes `trainer.fit()` survive the loss of nodes. Call it before `fit`, which can then be called once.

    `objects` are further ones whose state training changes, as for `deadpool.protect`. The job that is returned has no
    steps of its own: those are the trainer's. A library in which something is missing that this relies on is refused,
    and what was never tried with a fault; with `force` both are accepted. In a script that DeadPool did not start
    nothing changes, and a note says so.
    """
    if isinstance(trainer.fit_loop, ProtectedFitLoop):
        raise Refused(LightningRefusal.CALLED_TWICE, "protect() was called twice for this trainer")
    if not is_protected_job(LIBRARIES, force=force):
        return UnprotectedLibraryJob(_LOOP)
    require_supported_trainer(trainer)
    assert current.default_group is not None
    job = LibraryJob(_LOOP)
    quiet = None if current.default_group.is_live() else Quiet(trainer)
    training = Training(trainer, objects, quiet, job, force=force)
    if not current.default_group.is_live():
        training.ignore_checkpoint()
    for loop, mixin in ((trainer.fit_loop, ProtectedFitLoop), (trainer.fit_loop.epoch_loop, ProtectedEpochLoop)):
        kind = type(loop)
        loop.__class__ = type(f"Protected{kind.__name__}", (mixin, kind), {})
        vars(loop)["_deadpool"] = training
    return job


class ProtectedFitLoop(_FitLoop):  # type: ignore[misc]
    _deadpool: Training
    epoch_loop: ProtectedEpochLoop

    def run(self) -> None:
        with self._deadpool.data.attached(self):
            self.setup_data()
        if self.skip:
            return
        require_supported_fit(self.trainer, self._deadpool.objects)
        if not self._deadpool.force:
            require_tried(self)
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

    def on_run_start(self, data_fetcher: Any) -> None:
        if self.trainer.fit_loop.is_resuming:
            self._deadpool.data.begin_resumed_epoch()
        super().on_run_start(data_fetcher)

    def advance(self, data_fetcher: Any) -> None:
        if self._only_validates(data_fetcher):
            super().advance(data_fetcher)
            return
        begins_update = self.batch_progress.current.ready % self.trainer.accumulate_grad_batches == 0
        if begins_update or self._deadpool.was_entered:
            self._deadpool.next_step()
        steps = self.global_step
        try:
            super().advance(data_fetcher)
        except StopIteration:
            raise Refused(
                LightningRefusal.SKIPPED_EPOCH,
                "on_train_batch_start returned -1: epochs that end early cannot be protected",
            ) from None
        self._require_no_gradients_kept(steps)

    def _only_validates(self, data_fetcher: Any) -> bool:
        """Tells whether no batch is trained on: a checkpoint of a validation is entered at its end, or in it. That is
        before the first step of the job.
        """
        is_after_batch = self.val_loop.restarted_mid_evaluation or self.restarted_on_last
        return bool(self.restarting and self._should_check_val_fx(data_fetcher) and is_after_batch)

    def _require_no_gradients_kept(self, steps_before: int) -> None:
        """Refuses gradients that a batch leaves under optimization by hand, where each batch is a step: they are lost
        if the next is redone.
        """
        module = self.trainer.lightning_module
        if module.automatic_optimization or self.global_step > steps_before:
            return
        if any(parameter.grad is not None for parameter in module.parameters()):
            raise Refused(
                LightningRefusal.KEPT_GRADIENTS,
                "training_step has computed gradients and no optimizer has stepped: gradients that are added up over "
                "batches by hand cannot be protected; use automatic optimization with accumulate_grad_batches",
            )

    def on_advance_end(self, data_fetcher: Any) -> None:
        """A rehearsal neither validates nor saves: it only tries out a step."""
        if not self._deadpool.is_dry:
            validates = self._should_check_val_fx(data_fetcher)
            with self._deadpool.pause_if(validates, "validation"):
                super().on_advance_end(data_fetcher)
            if validates:
                require_supported_validation(self.val_loop)
