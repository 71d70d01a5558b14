"""What Trainer keeps beside model, optimizers, schedulers and data, and changes in a step."""

from __future__ import annotations

import time
from typing import Any

from deadpool.integrations.plain_state import plain_attributes, set_plain_attributes

_TIME = "time_last_log"


class Position:
    """Step and token counts, other plain attributes of the trainer, and the counters of metrics and validation.

    `ended`: torchtitan has left its loop after the last step. `was_loaded`: the state came from another process, or
    was put back, since `train` was entered. `is_new`: this process has not trained yet.
    """

    def __init__(self, trainer: Any, *, is_new: bool) -> None:
        self._trainer, self.is_new = trainer, is_new
        self.ended = self.was_loaded = False

    def state_dict(self) -> dict[str, Any]:
        return {
            "ended": self.ended,
            "own": self._trainer.state_dict(),
            "parts": {name: plain_attributes(part, but=frozenset({_TIME})) for name, part in self._parts().items()},
            "since_log_s": time.perf_counter() - getattr(self._trainer.metrics_processor, _TIME),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A process that has logged keeps its clock, so that throughput counts the time that the fault has cost."""
        trainer, self.ended, self.was_loaded = self._trainer, state["ended"], True
        trainer.load_state_dict(state["own"])
        for name, part in self._parts().items():
            set_plain_attributes(part, state["parts"][name])
        if self.is_new:
            setattr(trainer.metrics_processor, _TIME, time.perf_counter() - state["since_log_s"])

    def _parts(self) -> dict[str, Any]:
        trainer = self._trainer
        parts = {"trainer": trainer, "metrics": trainer.metrics_processor}
        return parts | ({"validator": trainer.validator} if trainer.config.validator.enable else {})
