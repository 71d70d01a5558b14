"""Refuses steps of ZeRO stage 3 in which a parameter gets no gradient.

Stage 3 writes a gradient over that of the step before, and only where there is one. A parameter that a step does not
use is therefore updated by a gradient of an earlier step. That gradient is no part of what is protected, so a redone
step would differ.
"""

from __future__ import annotations

from typing import Any

from deadpool.errors import ConfigError
from deadpool.trainer import current


class UnusedParameters:
    """Watches which gradients the first micro batch of a step brings."""

    def __init__(self, zero: Any) -> None:
        self._zero, self._seen = zero, set[int]()
        self.is_watching = current.session is not None
        self._partition_grads, self._pre_step = zero.partition_grads, zero._pre_step
        zero.partition_grads, zero._pre_step = self._gradients_come, self._step_begins

    def forget(self) -> None:
        self._seen.clear()

    def _gradients_come(self, params: list[Any], partitions: list[Any]) -> Any:
        if self._zero.micro_step_id == 0:
            self._seen.update(each.ds_id for each in params)
        return self._partition_grads(params, partitions)

    def _step_begins(self) -> None:
        missing = [each for group in self._zero.fp16_groups for each in group if each.ds_id not in self._seen]
        self._seen.clear()
        if missing and self.is_watching:
            names = ", ".join(self._zero.param_names[each] for each in missing[:4])
            raise ConfigError(
                f"{names}: no gradient in the first micro batch of a step. ZeRO stage 3 then uses a gradient of an "
                "earlier step, which cannot be redone exactly: use every parameter in each micro batch, freeze those "
                "that are not used (requires_grad = False) before deepspeed.initialize, or take stage 2"
            )
        self._pre_step()
