"""The callbacks and loggers of a spare that rehearses: nothing is drawn, written or sent. What began meanwhile begins
when it takes a rank."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer import call

_BEGINNINGS = ("on_fit_start", "on_train_start", "on_train_epoch_start")


class Quiet:
    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._callbacks, self._loggers = trainer.callbacks, trainer.loggers
        trainer.callbacks = [_SetupOnly(callback) for callback in self._callbacks]
        trainer.loggers = [DummyLogger() for _ in self._loggers]

    def end(self) -> None:
        trainer = self._trainer
        trainer.callbacks, trainer.loggers = self._callbacks, self._loggers
        for hook in _BEGINNINGS:
            call._call_callback_hooks(trainer, hook)


class _SetupOnly(Callback):  # type: ignore[misc]
    """`setup` may be a collective, so it has to run before this process meets the others."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._callback.setup(trainer, pl_module, stage)
