"""Modules without a wrapper, and tensor parallel ones: a step that was cut off leaves only gradients in them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from torch import nn

from deadpool.trainer.adapters.dtensor import replicas_of


class PlainAdapter:
    """Clears the gradients of all modules."""

    name = "plain"
    dry_steps_change_numerics = False
    dry_steps = 1

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)

    def reset(self) -> None:
        for module in self._modules:
            module.zero_grad(set_to_none=True)

    def rehearsing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def seated(self, resume_step: int) -> None:
        self.reset()

    def resumed(self) -> None:
        pass

    def replicas(self) -> dict[int, tuple[int, ...]]:
        return replicas_of(parameter for module in self._modules for parameter in module.parameters())
