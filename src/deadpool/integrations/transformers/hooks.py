"""`protect`, and the methods of Trainer through which its loop calls us. All state is in `_deadpool`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from deadpool.integrations.accelerate.data import require_supported_loader
from deadpool.integrations.library_check import is_protected_job
from deadpool.integrations.refusals import Refused
from deadpool.integrations.transformers.generation import QuietCallbacks
from deadpool.integrations.transformers.refusals import TrainerRefusal
from deadpool.integrations.transformers.relies_on import LIBRARIES
from deadpool.integrations.transformers.training import RESUMED, Training, require_supported
from deadpool.trainer import current
from deadpool.trainer.interface import Job
from deadpool.trainer.library_job import LibraryJob, UnprotectedLibraryJob

_LOOP = "trainer.train()"


def protect(trainer: Trainer, /, *, force: bool = False, **objects: object) -> Job:
    """Makes `trainer.train()` survive the loss of nodes. Call it before `train`, which can then be called once.

    `objects` are further ones whose state training changes, as for `deadpool.protect`. The job that is returned has no
    steps of its own: those are the trainer's. A library in which something is missing that this relies on is refused,
    and with `force` accepted. In a script that DeadPool did not start nothing changes, and a note says so.
    """
    if isinstance(trainer, ProtectedTrainer):
        raise Refused(TrainerRefusal.CALLED_TWICE, "protect() was called twice for this trainer")
    if not is_protected_job(LIBRARIES, force=force):
        return UnprotectedLibraryJob(_LOOP)
    require_supported(trainer, objects, force=force)
    assert current.session is not None
    quiet = QuietCallbacks(trainer.callback_handler) if current.session.groups.detached else None
    kind = type(trainer)
    trainer.__class__ = type(f"Protected{kind.__name__}", (ProtectedTrainer, kind), {})
    job = LibraryJob(_LOOP)
    vars(trainer)["_deadpool"] = Training(objects, quiet, job)
    return job


def checkpoint_to_begin_with(asked_for: Any) -> Any:
    """None in a process that takes part later: it gets its state from the others. A checkpoint that it finds may be
    newer than the one that the job began with, or half written."""
    assert current.session is not None
    return None if current.session.groups.detached else asked_for


class ProtectedTrainer(Trainer):  # type: ignore[misc]
    _deadpool: Training

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().train(checkpoint_to_begin_with(resume_from_checkpoint), *args, **kwargs)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        require_supported_loader(train_dataloader)
        self._deadpool.begin(self, prepared, max_steps, resume_from_checkpoint)
        return prepared

    def _run_epoch(self, **frame: Any) -> None:  # type: ignore[override]
        self._deadpool.run(self, super()._run_epoch, frame)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        self._deadpool.next_step(self)
        found = super().get_batch_samples(*args, **kwargs)
        self._deadpool.used(len(found[0]))
        return found

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint != RESUMED:
            super()._load_rng_state(checkpoint)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if not self._deadpool.is_dry:
            super()._maybe_log_save_evaluate(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self._deadpool.pause("evaluation"):
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with self._deadpool.pause("prediction"):
            return super().predict(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
        with self._deadpool.pause("checkpoint"):
            super()._save_checkpoint(model, trial, *args, **kwargs)
        step, job = self.state.global_step, self._deadpool.job
        if self.args.should_save and job is not None:
            job.durable(step, Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{step}")

    @property
    def _tr_loss(self) -> Tensor:
        loss = self._deadpool.loss
        assert loss is not None
        return loss.value

    @_tr_loss.setter
    def _tr_loss(self, value: Tensor) -> None:
        if value is not self._tr_loss:
            self._tr_loss.copy_(value)
