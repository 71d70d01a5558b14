"""One call of `train`, protected: its position, and what is refused.

`Training`: one call of `train`, protected: where its steps begin, and where Trainer's loop is entered again after a
fault.

`SummedLoss` and `LoopState`: what Trainer keeps beside model, optimizer and scheduler, and changes in a step.

What cannot be protected, because a step could not be redone exactly. It is refused with the reason.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import torch
import transformers.trainer
from accelerate.data_loader import skip_first_batches
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback

from deadpool.integrations.accelerate.data import AcceleratedData
from deadpool.integrations.plain_state import is_plain, plain_attributes, set_plain_attributes
from deadpool.integrations.refusals import Refused
from deadpool.integrations.transformers.generation import (
    GeneratedBatches,
    QuietCallbacks,
    end_cut_off_generation,
    generates,
    require_supported_generation,
)
from deadpool.integrations.transformers.refusals import TrainerRefusal
from deadpool.snapshot.state.rng import capture_rng, restore_rng
from deadpool.trainer.job import Job
from deadpool.trainer.library_job import LibraryJob
from deadpool.trainer.loop import StepLoop
from deadpool.trainer.protect import JobRank, join

_NOT_STATE = frozenset({"train_dataset", "eval_dataset", "log_history", "_buffered_inputs"})


class SummedLoss(nn.Module):
    """Trainer adds up its loss on the device. As a buffer it is captured without waiting for the device."""

    value: Tensor

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(0.0, device=device))


class LoopState:
    """Counters, flags, the history of logs, and the plain data of callbacks.

    `first` is the update that the job began with, after the checkpoint `resumed_from`. A process that is started later
    takes both from the others: it may find a newer checkpoint, and must not begin there.
    """

    def __init__(self, trainer: Any, resumed_from: str | None) -> None:
        self._trainer = trainer
        self.first, self.resumed_from = trainer.state.global_step, resumed_from
        self.epoch = self.consumed = 0  # the epoch, and how many of its batches the updates have used
        self._logs: list[str] = []  # the history as text: it only grows, and is part of every version

    def state_dict(self) -> dict[str, Any]:
        history = self._trainer.state.log_history
        del self._logs[len(history) :]
        self._logs += [json.dumps(each, default=float) for each in history[len(self._logs) :]]
        own = {"first": self.first, "resumed_from": self.resumed_from, "step": self._trainer.accelerator.step}
        own |= {"epoch": self.epoch, "consumed": self.consumed}
        parts = {name: plain_attributes(part, but=_NOT_STATE) for name, part in self._parts().items()}
        return {"own": own, "logs": list(self._logs), "parts": parts}

    def load_state_dict(self, state: dict[str, Any], *, keep_built: bool = False) -> None:
        """With `keep_built`, what is no plain data now stays: callbacks have built it since, such as a progress bar."""
        accelerator, own, self._logs = self._trainer.accelerator, state["own"], list(state["logs"])
        self.first, self.resumed_from, accelerator.step = own["first"], own["resumed_from"], own["step"]
        self.epoch, self.consumed = own["epoch"], own["consumed"]
        self._trainer.state.log_history[:] = [json.loads(each) for each in self._logs]
        for name, part in self._parts().items():
            if name in state["parts"]:
                stored = state["parts"][name]
                set_plain_attributes(part, _without_built(part, stored) if keep_built else stored)

    def _parts(self) -> dict[str, Any]:
        trainer = self._trainer
        parts = {"trainer": trainer, "state": trainer.state, "control": trainer.control}
        own = [each for each in trainer.callback_handler.callbacks if not _has_connections(each)]
        return parts | {f"callback {index} {type(each).__name__}": each for index, each in enumerate(own)}


def _without_built(part: Any, stored: dict[str, Any]) -> dict[str, Any]:
    values = {name: each for name, each in stored["values"].items() if is_plain(vars(part).get(name))}
    return {**stored, "values": values}


def _has_connections(callback: TrainerCallback) -> bool:
    """Tells whether the callback reports to another program: a fresh process connects anew, whatever the lost one
    remembered of that.
    """
    return any(kind.__module__.startswith("transformers.integrations") for kind in type(callback).__mro__)


def require_supported(trainer: Any, objects: dict[str, object], *, force: bool) -> None:
    args = trainer.args
    for is_used, refusal, what, instead in (
        (
            args.auto_find_batch_size,
            TrainerRefusal.BATCH_SIZE_FINDER,
            "auto_find_batch_size",
            "give per_device_train_batch_size",
        ),
        (
            args.ignore_data_skip,
            TrainerRefusal.IGNORED_SKIP,
            "ignore_data_skip",
            "leave it out: a step can be redone only with its own batches",
        ),
        (trainer.is_deepspeed_enabled, TrainerRefusal.DEEPSPEED, "DeepSpeed", "use DDP"),
        (
            args.dataloader_persistent_workers and args.eval_strategy != "no",
            TrainerRefusal.PERSISTENT_AND_EVALUATION,
            "dataloader_persistent_workers with evaluations",
            "leave it out: the loader of an evaluation keeps its workers too, and draws a seed in the first one only",
        ),
        (args.world_size == 1, TrainerRefusal.ONE_RANK, "a job of one rank", "start it with `deadpool run --nodes 2`"),
    ):
        if is_used:
            raise Refused(refusal, f"{what} cannot be protected with transformers.Trainer: {instead}")
    require_supported_generation(trainer, force=force)
    _require_models_of_callbacks(trainer, objects)


def _require_models_of_callbacks(trainer: Any, objects: dict[str, object]) -> None:
    """A callback that holds a model changes it (an average of weights, TRL's reference that follows)."""
    known = [id(each) for each in (trainer.model, *objects.values())]
    for callback in trainer.callback_handler.callbacks:
        for name, value in vars(callback).items():
            if isinstance(value, nn.Module) and id(value) not in known:
                kind = type(callback).__name__
                raise Refused(
                    TrainerRefusal.MODEL_OF_CALLBACK,
                    f"the callback {kind} has a model in its attribute {name}, which would not come back after a "
                    f"fault: pass it, as in protect(trainer, {name}=callback.{name})",
                )


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
        self._position: LoopState
        self._data: AcceleratedData
        self._max_steps = 0
        self._rng: Any = None  # where the numbers of the step begin that is entered again
        self._begun_at: int | None = None  # how many updates there were when the open step began
        self._is_again = False  # Trainer's loop is not entered where the job began

    def begin(self, trainer: Any, prepared: tuple[nn.Module, Any], max_steps: int, resumed_from: str | None) -> None:
        if self.job is not None:
            raise Refused(TrainerRefusal.CALLED_TWICE, "train() was called a second time: a job has one loop")
        joined = join()
        assert isinstance(joined, JobRank)
        self._max_steps, self.loss = max_steps, SummedLoss(trainer.args.device)
        model, loader = prepared
        self._position = position = LoopState(trainer, resumed_from)
        self._data = AcceleratedData(loader, lambda: position.consumed)
        objects: dict[str, Any] = {
            "model": model,
            "optimizer": trainer.optimizer,
            "scheduler": trainer.lr_scheduler,
            "loss": self.loss,
            "position": self._position,
            "data": self._data,
        }
        if trainer.accelerator.scaler is not None:
            objects["scaler"] = trainer.accelerator.scaler
        if generates(trainer):
            objects["generated"] = GeneratedBatches(trainer)
        self.job = joined.protect(**objects, **self._objects)
        self._returned.begin(self.job)
        self._loop = self.job.loop(lambda: max_steps - self._position.first)

    @property
    def is_dry(self) -> bool:
        return self._loop.step is not None and self._loop.step.dry

    def pause(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return self.job.pause(reason) if self.job is not None else contextlib.nullcontext()

    def next_step(self, trainer: Any) -> None:
        """Called before Trainer asks for the batches of an update. Where a stream has ended before it had enough of
        them, the step goes on in the next epoch."""
        if self._begun_at is None or trainer.state.global_step != self._begun_at:
            self._loop.next_step()
            self._begun_at = trainer.state.global_step
        if self._rng is not None:
            restore_rng(self._rng)
            self._rng = None

    def used(self, batches: int) -> None:
        self._position.consumed += batches

    def run(self, trainer: Any, run_epoch: Callable[..., None], frame: dict[str, Any]) -> None:
        """All epochs that are left, in the frame of the first one: a newcomer's frame is that of another epoch."""
        original = transformers.trainer.skip_first_batches
        transformers.trainer.skip_first_batches = self._skip_first_batches
        try:
            self._run(trainer, run_epoch, frame)
        finally:
            transformers.trainer.skip_first_batches = original

    def _skip_first_batches(self, loader: Any, num_batches: int = 0) -> Any:
        return self._data.skip(skip_first_batches, loader, num_batches, is_again=self._is_again)

    def _run(self, trainer: Any, run_epoch: Callable[..., None], frame: dict[str, Any]) -> None:
        is_new, position = True, self._position
        position.epoch, position.consumed = frame["epoch"], frame["steps_trained_in_current_epoch"]
        while (number := self._loop.enter()) is not None:
            assert self.job is not None
            if self.job.rehearses:
                position.epoch, position.consumed = frame["epoch"], frame["steps_trained_in_current_epoch"]
            # The first epoch of the job had begun before its first boundary, all others begin after one.
            begins_epoch = position.consumed == 0 and number > 0
            self._go_live(trainer, in_epoch=not begins_epoch)
            if not is_new or number > 0:
                self._prepare_again(trainer, begins_epoch=begins_epoch)
                self._rng = capture_rng() if number > 0 else None
            self._is_again = number > 0
            is_new, self._begun_at = False, None
            try:
                self._run_epochs(trainer, run_epoch, frame, number)
            except BaseException as error:
                if not self._loop.came_back(error):
                    raise
                continue
            if self.is_dry:
                continue
            if self._has_ended(trainer) and trainer.state.global_step < self._max_steps:
                self._loop.leave()
                return
        trainer.control.should_training_stop = True  # Trainer's own loop over epochs has nothing left to do

    def _has_ended(self, trainer: Any) -> bool:
        """Tells whether Trainer's own loop would be over: callbacks that stop an epoch leave steps out."""
        return bool(trainer.control.should_training_stop) or self._position.epoch >= trainer.state.num_train_epochs

    def _run_epochs(self, trainer: Any, run_epoch: Callable[..., None], frame: dict[str, Any], number: int) -> None:
        """Runs the epoch that is due, and those after it in which the step that it has left open goes on."""
        position = self._position
        while True:
            again = {
                "epoch": position.epoch,
                # A checkpoint that the job began with has random numbers for its first step.
                "resume_from_checkpoint": RESUMED if number > 0 else position.resumed_from,
                "epochs_trained": position.epoch,
                "steps_trained_in_current_epoch": position.consumed,
            }
            run_epoch(**{**frame, **again})
            if self.is_dry:
                return
            self._data.leave_epoch()
            position.epoch, position.consumed = position.epoch + 1, 0
            is_open = self._begun_at is not None and trainer.state.global_step == self._begun_at
            if not is_open or self._has_ended(trainer):
                return
            number, self._is_again = number + 1, True
            trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)

    def _prepare_again(self, trainer: Any, *, begins_epoch: bool) -> None:
        trainer.accelerator.gradient_state.dataloader_references = [None]  # of loaders that the fault has cut off
        trainer.model_wrapped.zero_grad()
        end_cut_off_generation(trainer)
        if begins_epoch:
            trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)

    def _go_live(self, trainer: Any, *, in_epoch: bool) -> None:
        """What callbacks do when training begins, they do now. It changes no random numbers, nor what was loaded."""
        assert self.job is not None
        if self._quiet is None or self.job.rehearses:
            return
        rng, loaded, quiet, self._quiet = capture_rng(), self._position.state_dict(), self._quiet, None
        quiet.go_live(trainer, in_epoch=in_epoch)
        self._position.load_state_dict(loaded, keep_built=True)
        restore_rng(rng)
