"""What a rehearsal keeps from the world outside of its process.

`Quiet`: a spare that rehearses writes nothing: its loggers are opened, and its profiler is switched on, when it
takes a rank.

`watch_checkpoints`, `watch_validation` and `watch_metrics`: what a step does outside of this process: checkpoints,
validation, metrics. A rehearsal does none of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchtitan.components.metrics import BaseLogger, MetricsProcessor

from deadpool.trainer import current

if TYPE_CHECKING:
    from deadpool.integrations.torchtitan.training import Training


class Quiet:
    def __init__(self, trainer: Any) -> None:
        self._trainer, self._profiler = trainer, trainer.config.profiler
        trainer.config.profiler = dataclasses.replace(
            self._profiler, enable_profiling=False, enable_memory_snapshot=False
        )

    def end(self) -> None:
        self._trainer.config.profiler = self._profiler
        metrics = self._trainer.metrics_processor
        if isinstance(metrics.logger, _LaterLogger):
            metrics.logger = metrics.logger.open()


class _LaterLogger(BaseLogger):  # type: ignore[misc]
    def __init__(self, open: Callable[[], BaseLogger]) -> None:
        self.open = open


def open_loggers_later() -> None:
    """TensorBoard would begin a file and W&B a run, for a process that may never take a rank."""
    build = MetricsProcessor._build_metric_logger

    @functools.wraps(build)
    def build_later(self: Any, **settings: Any) -> BaseLogger:
        group = current.default_group
        is_spare = group is not None and not group.is_live()
        return _LaterLogger(lambda: build(self, **settings)) if is_spare else build(self, **settings)

    MetricsProcessor._build_metric_logger = build_later


def watch_checkpoints(checkpointer: Any, training: Training) -> None:
    load, save = checkpointer.load, checkpointer.save

    def load_once(*args: Any, **kwargs: Any) -> bool:
        return bool(training.loads_checkpoints and load(*args, **kwargs))

    def save_in_pause(curr_step: int, last_step: bool = False) -> bool:
        if training.is_dry:
            return False
        with training.pause("checkpoint"):
            saved = bool(save(curr_step, last_step))
        if saved and training.job is not None and not (last_step and checkpointer.last_save_model_only):
            training.job.durable(curr_step, checkpointer._create_checkpoint_id(curr_step))
        return saved

    checkpointer.load, checkpointer.save = load_once, save_in_pause


def watch_validation(validator: Any, training: Training) -> None:
    validate = validator.validate

    def validate_in_pause(*args: Any, **kwargs: Any) -> None:
        if not training.is_dry:
            with training.pause("validation"):
                validate(*args, **kwargs)

    validator.validate = validate_in_pause


def watch_metrics(metrics: Any, training: Training) -> None:
    log = metrics.log

    def log_if_real(*args: Any, **kwargs: Any) -> None:
        if not training.is_dry:
            log(*args, **kwargs)

    metrics.log = log_if_real
