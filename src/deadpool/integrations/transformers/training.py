"""One call of `train`, protected: where its steps begin, and where Trainer's loop is entered again after a fault."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import nn

from deadpool.errors import ConfigError
from deadpool.integrations.transformers.generation import (
    GeneratedBatches,
    end_cut_off_generation,
    generates,
    rewind_repeat_sampler,
)
from deadpool.integrations.transformers.position import Position, SummedLoss
from deadpool.integrations.transformers.quiet_callbacks import QuietCallbacks
from deadpool.integrations.transformers.supported import refuse_epoch_stop, sampler_of
from deadpool.snapshot.state.rng import capture_rng, restore_rng
from deadpool.trainer.job import Job
from deadpool.trainer.library_job import LibraryJob
from deadpool.trainer.loop import StepLoop
from deadpool.trainer.pool import Pool, join

RESUMED = "deadpool"
"""Stands where Trainer expects the path of a checkpoint."""


class Training:
    def __init__(self, objects: dict[str, object], quiet: QuietCallbacks | None, returned: LibraryJob) -> None:
        self._objects: dict[str, Any] = objects
        self._returned = returned
        self._quiet = quiet  # until this process is no spare any more
        self.job: Job | None = None
        self.loss: SummedLoss | None = None
        self._loop: StepLoop
        self._position: Position
        self._max_steps = 0
        self._rng: Any = None

    def begin(self, trainer: Any, model: nn.Module, max_steps: int, resumed_from: str | None) -> None:
        if self.job is not None:
            raise ConfigError("train() was called a second time: a job has one loop")
        pool = join()
        assert isinstance(pool, Pool)
        self._max_steps, self.loss = max_steps, SummedLoss(trainer.args.device)
        self._position = Position(trainer, resumed_from)
        objects: dict[str, Any] = {
            "model": model,
            "optimizer": trainer.optimizer,
            "scheduler": trainer.lr_scheduler,
            "loss": self.loss,
            "position": self._position,
        }
        if trainer.accelerator.scaler is not None:
            objects["scaler"] = trainer.accelerator.scaler
        if generates(trainer):
            objects["generated"] = GeneratedBatches(trainer)
        self.job = pool.protect(**objects, **self._objects)
        self._returned.begin(self.job)
        self._loop = self.job.loop(lambda: max_steps - self._position.first)

    @property
    def is_dry(self) -> bool:
        return self._loop.step is not None and self._loop.step.dry

    def pause(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return self.job.pause(reason) if self.job is not None else contextlib.nullcontext()

    def next_step(self) -> None:
        self._loop.next_step()

    def load_rng(self) -> None:
        restore_rng(self._rng)

    def run(self, trainer: Any, run_epoch: Callable[..., None], frame: dict[str, Any]) -> None:
        """All epochs that are left, in the frame of the first one: a newcomer's frame is that of another epoch."""
        is_new = True
        while (number := self._loop.enter()) is not None:
            per_epoch = frame["num_update_steps_per_epoch"]
            epoch, update = divmod(self._position.first + number, per_epoch)
            # The first epoch of the job had begun before its first boundary, all others begin after one.
            begins_epoch = update == 0 and number > 0
            self._go_live(trainer, in_epoch=not begins_epoch)
            if not is_new or number > 0:
                self._prepare_again(trainer, begins_epoch=begins_epoch)
            is_new = False
            rewind_repeat_sampler(sampler_of(frame["train_dataloader"]), epoch - self._position.first // per_epoch)
            again = {
                "epoch": epoch,
                # A checkpoint that the job began with has random numbers for its first step.
                "resume_from_checkpoint": RESUMED if number > 0 else self._position.resumed_from,
                "epochs_trained": epoch,
                "steps_trained_in_current_epoch": update * trainer.args.gradient_accumulation_steps,
            }
            try:
                run_epoch(**{**frame, **again})
            except BaseException as error:
                if not self._loop.came_back(error):
                    raise
                continue
            if self.is_dry:
                continue
            refuse_epoch_stop(trainer.control)
            if trainer.control.should_training_stop and trainer.state.global_step < self._max_steps:
                self._loop.leave()
                return
        trainer.control.should_training_stop = True  # Trainer's own loop over epochs has nothing left to do

    def _prepare_again(self, trainer: Any, *, begins_epoch: bool) -> None:
        trainer.accelerator.gradient_state.dataloader_references = [None]  # of loaders that the fault has cut off
        trainer.model_wrapped.zero_grad()
        end_cut_off_generation(trainer)
        if begins_epoch:
            trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
        self._rng = capture_rng()

    def _go_live(self, trainer: Any, *, in_epoch: bool) -> None:
        """What callbacks do when training begins, they do now. It changes no random numbers, nor what was loaded."""
        assert self.job is not None
        if self._quiet is None or self.job.rehearses:
            return
        rng, loaded, quiet, self._quiet = capture_rng(), self._position.state_dict(), self._quiet, None
        quiet.go_live(trainer, in_epoch=in_epoch)
        self._position.load_state_dict(loaded, keep_built=True)
        restore_rng(rng)
