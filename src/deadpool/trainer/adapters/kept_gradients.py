"""Refuses gradients that stay in DDP's buckets from step to step if the number of ranks is no power of two.

With gradient_as_bucket_view the reducer averages in two ways. A gradient that was None is multiplied by 1/n on its way
into the bucket; one that is already there (`zero_grad(set_to_none=False)`) is divided by n. For n = 3 the results
differ in the last bit. After a recovery the buckets are new and hold no gradient, so the redone step would average in
the other way. Whether a script keeps its gradients shows when the first one arrives in the second step: one hook on one
parameter, for that step only, finds out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from deadpool.errors import ConfigError

_SECOND = 1


class KeptGradients:
    def __init__(self, modules: Iterable[DistributedDataParallel]) -> None:
        self._modules: list[Any] = [module for module in modules if _averages_in_two_ways(module)]
        self._hooks: list[Any] = []
        self._kept = False

    def enter_step(self, number: int) -> None:
        if number == _SECOND:
            self._stop()
            for module in self._modules:
                self._watch(next((each for each in module.parameters() if each.grad is not None), None))

    def check(self) -> None:
        """Called at the end of a step."""
        self._stop()
        if self._kept:
            raise ConfigError(
                "gradients stay in the buckets of DistributedDataParallel from step to step, and the number of ranks "
                "is no power of two: after a fault torch would average them by another operation, and losses would "
                "differ in the last bit. Call zero_grad() without set_to_none=False, or leave out "
                "gradient_as_bucket_view=True"
            )

    def _watch(self, param: Tensor | None) -> None:
        if param is None:
            return

        def arriving(_: Tensor) -> None:
            self._kept = self._kept or param.grad is not None
            hook.remove()

        hook = param.register_hook(arriving)
        self._hooks.append(hook)

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _averages_in_two_ways(module: Any) -> bool:
    ranks = dist.get_world_size(module.process_group)
    hooks = getattr(module, "_comm_hooks", ())
    return module.gradient_as_bucket_view and ranks & (ranks - 1) != 0 and not hooks
