"""Modules without a wrapper, and tensor parallel ones: a step that was cut off leaves only gradients in them.

They stay where they are until the state of a version is put back, which zeroes them in place: the script may hold them
(snapshot/identity/gradients.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from deadpool.snapshot.state import cures
from deadpool.trainer.adapters.adapter import Adapter
from deadpool.trainer.adapters.dtensor import replicas_of


class PlainAdapter(Adapter):
    """Knows which parameters are replicated."""

    name = "plain"

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)

    def reset(self) -> None:
        for module in self._modules if cures.is_off("D1") else ():
            module.zero_grad(set_to_none=True)

    def seated(self, resume_step: int) -> None:
        self.reset()

    def replicas(self) -> dict[int, tuple[int, ...]]:
        return replicas_of(parameter for module in self._modules for parameter in module.parameters())
