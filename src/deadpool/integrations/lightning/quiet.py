"""The callbacks and loggers of a spare that rehearses: nothing is drawn, written or sent. What began meanwhile begins
when it takes a rank."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer import call

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
