"""Protected steps for `transformers.Trainer`, and for trainers that are built on it, such as TRL's.

    from deadpool.integrations.transformers import protect

    trainer = Trainer(model=model, args=args, train_dataset=data)
    protect(trainer)
    trainer.train()

A step is one optimizer update with all that Trainer does until the next one begins: batches, accumulation, clipping,
logging, evaluation, saving. Epoch and update are local variables of Trainer's loop. So after a fault its `_run_epoch`
is entered again at the update that is due, in the way in which Trainer resumes from a checkpoint: batches are skipped,
and the random numbers of that moment are put back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_callback import DefaultFlowCallback, TrainerCallback

from deadpool.errors import ConfigError
from deadpool.integrations.plain_state import plain_attributes, set_plain_attributes
from deadpool.integrations.random_data import require_no_random_data
from deadpool.integrations.tested_versions import require_tested
from deadpool.notes import note
from deadpool.snapshot.rng import capture_rng, restore_rng
from deadpool.trainer import current
from deadpool.trainer.job import Job
from deadpool.trainer.loop import StepLoop
from deadpool.trainer.pool import Pool, join

__all__ = ["protect"]

TESTED = {"transformers": ("5.22",), "accelerate": ("1.15",)}
_RESUMED = "deadpool"  # stands where Trainer expects the path of a checkpoint

T = TypeVar("T", bound=Trainer)


def protect(trainer: T, *, force: bool = False, **objects: object) -> T:
    """Makes `trainer.train()` survive the loss of nodes. Call it before `train`, which can then be called once.

    `objects` are further ones whose state training changes, as for `Pool.protect`. With `force` versions are accepted
    that were never tested. In a script that DeadPool did not start nothing changes, and a note says so.
    """
    if current.session is None:
        note("this script was not started by DeadPool, so it is not protected: start it with `deadpool run`")
        return trainer
    require_tested(TESTED, force=force)
    _require_supported(trainer)
    kind = type(trainer)
    trainer.__class__ = type(f"Protected{kind.__name__}", (_Protected, kind), {})
    vars(trainer)["_deadpool"] = _Training(objects)
    return trainer


def _require_supported(trainer: Trainer) -> None:
    args = trainer.args
    for is_used, what, instead in (
        (args.auto_find_batch_size, "auto_find_batch_size", "give per_device_train_batch_size"),
        (args.ignore_data_skip, "ignore_data_skip", "leave it out: a step can be redone only with its own batches"),
        (trainer.is_deepspeed_enabled, "DeepSpeed", "use DDP or FSDP2"),
        (not hasattr(trainer.train_dataset, "__len__"), "a training set without a length", "give it __len__"),
        (args.world_size == 1, "a job of one rank", "start it with `deadpool run --nodes 2`"),
    ):
        if is_used:
            raise ConfigError(f"{what} cannot be protected with transformers.Trainer: {instead}")


class _Loss(nn.Module):
    """Trainer adds up its loss on the device. As a buffer it is captured without waiting for the device."""

    value: Tensor

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(0.0, device=device))


class _Position:
    """What Trainer keeps in plain attributes: counters, flags, the history of logs, and the same of its callbacks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def _parts(self) -> dict[str, Any]:
        trainer, handler = self._trainer, self._trainer.callback_handler
        parts = {"trainer": trainer, "state": trainer.state, "control": trainer.control}
        own = [each for each in handler.callbacks if not type(each).__module__.startswith("transformers.integrations")]
        return parts | {f"callback {index} {type(each).__name__}": each for index, each in enumerate(own)}

    def state_dict(self) -> dict[str, Any]:
        accelerator = self._trainer.accelerator
        return {"accelerator": accelerator.step} | {
            name: plain_attributes(part) for name, part in self._parts().items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trainer.accelerator.step = state["accelerator"]
        for name, part in self._parts().items():
            set_plain_attributes(part, state[name])


class _Training:
    """One call of `train`, protected."""

    def __init__(self, objects: dict[str, object]) -> None:
        self._objects: dict[str, Any] = objects
        self.job: Job | None = None
        self.loss: _Loss | None = None
        self._loop: StepLoop
        self._rng: Any = None

    def begin(self, trainer: Any, model: nn.Module, max_steps: int) -> None:
        if self.job is not None:
            raise ConfigError("train() was called a second time: a job has one loop")
        pool = join()
        assert isinstance(pool, Pool)
        self.loss = _Loss(trainer.args.device)
        objects: dict[str, Any] = {
            "model": model,
            "optimizer": trainer.optimizer,
            "scheduler": trainer.lr_scheduler,
            "loss": self.loss,
            "position": _Position(trainer),
        }
        if trainer.accelerator.scaler is not None:
            objects["scaler"] = trainer.accelerator.scaler
        self.job = pool.protect(**objects, **self._objects)
        self._first, self._count = trainer.state.global_step, max_steps - trainer.state.global_step
        self._loop = self.job.loop(self._count)
        self._handler = _QuietCallbacks(trainer.callback_handler) if self.job.rehearses else None

    @property
    def is_dry(self) -> bool:
        return self._loop.step is not None and self._loop.step.dry

    def next_step(self) -> None:
        self._loop.next_step()

    def run(self, trainer: Any, run_epoch: Callable[..., None], frame: dict[str, Any]) -> None:
        """All epochs that are left, in the frame of the first one: a newcomer's frame is that of another epoch."""
        is_new = True
        while (number := self._loop.enter()) is not None:
            self._go_live(trainer)
            epoch, update = divmod(self._first + number, frame["num_update_steps_per_epoch"])
            again = {
                "epoch": epoch,
                "resume_from_checkpoint": _RESUMED,
                "epochs_trained": epoch,
                "steps_trained_in_current_epoch": update * trainer.args.gradient_accumulation_steps,
            }
            try:
                if not is_new or number > 0:
                    self._prepare_again(trainer, begins_epoch=update == 0)
                # The first step as Trainer wants it: a checkpoint that it resumes from has random numbers for it.
                run_epoch(**(frame if number == 0 else {**frame, **again}))
            except BaseException as error:
                if not self._loop.came_back(error):
                    raise
            is_new = False
            if trainer.control.should_training_stop and not self.is_dry and self._stops_early(trainer):
                self._loop.leave()
                return
        trainer.control.should_training_stop = True  # Trainer's own loop over epochs has nothing left to do

    def _stops_early(self, trainer: Any) -> bool:
        return self._loop.step is not None and bool(trainer.state.global_step < self._first + self._count)

    def _prepare_again(self, trainer: Any, *, begins_epoch: bool) -> None:
        self._forget_iterations(trainer)
        trainer.model_wrapped.zero_grad()
        if begins_epoch:
            trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
        self._rng = capture_rng()

    def load_rng(self) -> None:
        restore_rng(self._rng)

    def _go_live(self, trainer: Any) -> None:
        assert self.job is not None
        if self._handler is not None and not self.job.rehearses:
            self._handler.go_live(trainer)
            self._handler = None

    @staticmethod
    def _forget_iterations(trainer: Any) -> None:
        """Loaders whose iteration the fault has cut off still count as active."""
        state = trainer.accelerator.gradient_state
        state.dataloader_references = [None]


class _QuietCallbacks:
    """Of a spare that rehearses: nothing is drawn, written or sent. What began meanwhile begins when it is seated."""

    def __init__(self, handler: Any) -> None:
        self._handler, self._call_event = handler, handler.call_event
        self._began = False
        handler.call_event = self._call_flow_only

    def _call_flow_only(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._began |= event == "on_train_begin"
        return self._call(_is_flow, event, args, state, control, **kwargs)

    def _call(self, choose: Callable[[TrainerCallback], bool], *arguments: Any, **kwargs: Any) -> Any:
        every = self._handler.callbacks
        self._handler.callbacks = [callback for callback in every if choose(callback)]
        try:
            return self._call_event(*arguments, **kwargs)
        finally:
            self._handler.callbacks = every

    def go_live(self, trainer: Any) -> None:
        del self._handler.call_event
        if self._began:
            flow = {name: getattr(trainer.control, name) for name in vars(trainer.control)}
            self._call(lambda each: not _is_flow(each), "on_train_begin", trainer.args, trainer.state, trainer.control)
            vars(trainer.control).update(flow)


def _is_flow(callback: TrainerCallback) -> bool:
    return isinstance(callback, DefaultFlowCallback)


class _Protected(Trainer):  # type: ignore[misc]
    """Where Trainer's loop calls us. All state is in `_deadpool`."""

    _deadpool: _Training

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        require_no_random_data(train_dataloader)
        self._deadpool.begin(self, prepared[0], max_steps)
        return prepared

    def _run_epoch(self, **frame: Any) -> None:  # type: ignore[override]
        self._deadpool.run(self, super()._run_epoch, frame)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        self._deadpool.next_step()
        return super().get_batch_samples(*args, **kwargs)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint == _RESUMED:
            self._deadpool.load_rng()
        else:
            super()._load_rng_state(checkpoint)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if not self._deadpool.is_dry:
            super()._maybe_log_save_evaluate(*args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        job = self._deadpool.job
        assert job is not None
        with job.pause("evaluation"):
            return super()._evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        job = self._deadpool.job
        assert job is not None
        with job.pause("checkpoint"):
            super()._save_checkpoint(*args, **kwargs)

    @property
    def _tr_loss(self) -> Tensor:
        loss = self._deadpool.loss
        assert loss is not None
        return loss.value

    @_tr_loss.setter
    def _tr_loss(self, value: Tensor) -> None:
        if value is not self._tr_loss:
            self._tr_loss.copy_(value)
