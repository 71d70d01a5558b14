"""A spare that rehearses writes nothing: its loggers are opened, and its profiler is switched on, when it takes a
rank."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from torchtitan.components.metrics import BaseLogger, MetricsProcessor

from deadpool.trainer import current


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
