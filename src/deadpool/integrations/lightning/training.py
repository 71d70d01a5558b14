"""One call of `fit`, protected: its batches, and what a rehearsal keeps quiet.

`Training`: one call of `fit`, protected: where its steps begin, and where Lightning's loops are entered again after
a fault.

`Quiet`: the callbacks and loggers of a spare that rehearses: nothing is drawn, written or sent. What began meanwhile
begins when it takes a rank.
"""

from __future__ import annotations

import contextlib
import math
import os
from typing import Any

import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer import call

from deadpool.integrations.lightning.data import LightningData
from deadpool.integrations.lightning.loop_state import LoopState
from deadpool.integrations.lightning.refusals import LightningRefusal
from deadpool.integrations.refusals import Refused
from deadpool.snapshot.state.rng import capture_rng, restore_rng
from deadpool.trainer.job import Job
from deadpool.trainer.library_job import LibraryJob
from deadpool.trainer.loop import Moved, StepLoop
from deadpool.trainer.protect import JobRank, join

_BEGINNINGS = ("on_fit_start", "on_train_start", "on_train_epoch_start")


class Quiet:
    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._callbacks, self._loggers = trainer.callbacks, trainer.loggers
        trainer.callbacks = [_SetupOnly(callback) for callback in self._callbacks]
        trainer.loggers = [_QuietLogger(logger) for logger in self._loggers]

    def end(self) -> None:
        trainer = self._trainer
        trainer.callbacks, trainer.loggers = self._callbacks, self._loggers
        for logger in self._loggers:
            _keep_old_files(logger)
        for hook in _BEGINNINGS:
            call._call_callback_hooks(trainer, hook)


class _SetupOnly(Callback):  # type: ignore[misc]
    """`setup` may be a collective, so it has to run before this process meets the others."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._callback.setup(trainer, pl_module, stage)


class _QuietLogger(DummyLogger):  # type: ignore[misc]
    """Has the names of the real one, because scripts make paths of them."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    @property
    def name(self) -> Any:
        return self._logger.name

    @property
    def version(self) -> Any:
        return self._logger.version

    @property
    def save_dir(self) -> Any:
        return self._logger.save_dir

    @property
    def root_dir(self) -> Any:
        return self._logger.root_dir

    @property
    def log_dir(self) -> Any:
        return self._logger.log_dir


def _keep_old_files(logger: Logger) -> None:
    """CSVLogger deletes what another process has written under the same version."""
    if isinstance(logger, CSVLogger) and logger._version is not None:
        logger._version = f"{logger.version}-from-process-{os.getpid()}"


_NO_END = 1 << 40
"""Steps of a training whose length is not known before it has ended."""


class Training:
    def __init__(
        self, trainer: Any, objects: dict[str, object], quiet: Quiet | None, returned: LibraryJob, *, force: bool
    ) -> None:
        self._trainer, self.objects, self.force = trainer, dict[str, Any](objects), force
        self._returned = returned
        self._quiet = quiet  # until this process is no spare any more
        self.job: Job | None = None
        self._loop: StepLoop
        self._position: LoopState
        self.data = LightningData()
        self.was_entered = True
        """Lightning's loops were entered, and no step has begun since: the next batch begins one, also where a
        checkpoint was written in the middle of accumulated batches."""

    def ignore_checkpoint(self) -> None:
        """A process that takes part later gets its state from the others. A checkpoint that it finds may be newer than
        the one that the job began with, or half written."""
        self._trainer._checkpoint_connector._select_ckpt_path = lambda *_, **__: None

    @property
    def is_dry(self) -> bool:
        return self.job is not None and self._loop.step is not None and self._loop.step.dry

    def pause_if(self, applies: bool, reason: str) -> contextlib.AbstractContextManager[None]:
        return self.job.pause(reason) if applies and self.job is not None else contextlib.nullcontext()

    def next_step(self) -> None:
        """Called inside of the epoch's loop, before the first batch of a step is fetched. A process that comes later
        stands at the first batch of all then, and the loops have to be entered elsewhere."""
        if self.job is None:
            self._begin()
            self._loop.enter()
            if self._position.was_loaded:
                raise Moved
        self._loop.next_step()
        self.was_entered = False

    def _begin(self) -> None:
        trainer, joined = self._trainer, join()
        assert isinstance(joined, JobRank)
        self._position = LoopState(trainer)
        if self._quiet is None:
            self._position.files.begin()
        objects: dict[str, Any] = {"model": trainer.strategy.model, "position": self._position, "data": self.data}
        objects |= {f"optimizer{index}": each for index, each in enumerate(trainer.optimizers)}
        objects |= {f"scheduler{index}": each.scheduler for index, each in enumerate(trainer.lr_scheduler_configs)}
        if (scaler := getattr(trainer.precision_plugin, "scaler", None)) is not None:
            objects["scaler"] = scaler
        self.job = joined.protect(**objects, **self.objects)
        self._returned.begin(self.job)
        position = self._position
        self._loop = self.job.loop(lambda: _count_steps(trainer, position.first))

    def run(self, fit_loop: Any) -> None:
        if self.job is not None:
            raise Refused(LightningRefusal.CALLED_TWICE, "fit() was called a second time: a job has one loop")
        is_again = False
        while True:
            try:
                if is_again:
                    self._enter_again(fit_loop)
                    fit_loop.finish_epoch()
                fit_loop.run_epochs()
                if self._has_ended():
                    return
            except BaseException as error:
                if self.job is None or not self._loop.came_back(error):
                    raise
                if self._loop.enter() is None:
                    return
            is_again = True

    def _has_ended(self) -> bool:
        """Lightning has no batch left. If every rank has done all steps, nothing will be redone."""
        if self.job is None:
            return True
        ends_early = not self.is_dry and self._trainer.global_step < _count_steps(self._trainer, 0)
        if ends_early:
            self._loop.leave()
        return ends_early or self._loop.enter() is None

    def _enter_again(self, fit_loop: Any) -> None:
        """The random numbers are those of the boundary: what is drawn to get there was drawn before it."""
        trainer = self._trainer
        trainer.training = True
        torch.set_grad_enabled(True)
        fit_loop.epoch_loop.val_loop._results.reset()  # a validation that the fault has cut off begins anew
        rng = capture_rng()
        for loader in fit_loop._combined_loader.flattened:
            _set_sampler_epoch(loader, fit_loop.epoch_progress.current.processed)
        self.data.enter_again()
        fetcher = fit_loop._data_fetcher
        fetcher.fetched += fit_loop.epoch_loop.batch_progress.current.ready
        self._go_live()
        restore_rng(rng)
        self._position.was_loaded, self.was_entered = False, True

    def _go_live(self) -> None:
        """What callbacks do when training begins, they do now. It does not change what was loaded."""
        assert self.job is not None
        if self._quiet is None or self.job.rehearses:
            return
        quiet, self._quiet, loaded = self._quiet, None, self._position.loaded
        quiet.end()
        self._position.files.begin()
        if loaded is not None:
            self._position.load_state_dict(loaded)


def _count_steps(trainer: Any, first: int) -> int:
    """Optimizer steps of the whole training, without those before `first`."""
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    has_length = math.isfinite(batches) and epochs is not None and epochs >= 0
    by_epochs = epochs * math.ceil(batches / trainer.accumulate_grad_batches) if has_length else _NO_END
    if not trainer.lightning_module.automatic_optimization and trainer.max_steps > 0:
        return _NO_END  # how many steps of optimizers a batch takes is up to the script
    return (min(by_epochs, trainer.max_steps) if trainer.max_steps > 0 else by_epochs) - first
