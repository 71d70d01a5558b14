"""Finds gradients that one step leaves and a later step's optimizer uses: an optimizer that steps every third step.

The contents of gradients are in no snapshot, so the step that is redone would begin with zeros. That a gradient is
alive at a boundary proves nothing, because most scripts drop it at the start of the next step. So for few parameters it
is looked at when the first gradient of a step arrives: is something there still? And it counts only if the optimizer
then takes it: a GAN's generator leaves gradients in the discriminator, which drops them before its own turn. An
optimizer that takes what nobody has touched since the boundary is named too.

Gradients that FSDP2 adds up in shards arrive otherwise, and are not seen here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from deadpool.snapshot.record.tensors import local_part
from deadpool.trainer.guards.findings import Findings
from deadpool.trainer.guards.guard import is_due
from deadpool.trainer.guards.rules import Rule

_LOOKED_AT = 3
_LONGEST = 64
"""Steps in a row in which a gradient that nobody takes is looked at."""


class CarriedGradients:
    def __init__(self, findings: Findings, optimizers: Sequence[Optimizer]) -> None:
        self._findings, self._optimizers = findings, optimizers
        self._watched: dict[int, _WatchedGradient] = {}  # by id of the parameter
        self._hooks: list[Any] = []
        self._number = 0
        self._rounds = 0
        self._is_done = False

    def enter_step(self, number: int) -> None:
        self._stop()
        self._number = number
        carried = {key for key, each in self._watched.items() if each.is_carried}
        self._rounds = self._rounds + 1 if carried else 0
        if self._is_done or not (is_due(number) or 0 < self._rounds < _LONGEST):
            self._watched = {}
            return
        chosen = _choose([each for each in self._params() if each.requires_grad and each.grad is not None])
        self._watched = {id(param): _WatchedGradient(param, was_carried=id(param) in carried) for param in chosen}
        self._hooks = [each.watch() for each in self._watched.values()]
        if self._watched:
            self._hooks += [each.register_step_pre_hook(self._before_update) for each in self._optimizers]

    def leave_step(self, number: int) -> None:
        self._stop()

    def at_boundary(self, number: int) -> None:
        """What is done behind the block is not looked at."""

    def _params(self) -> Iterable[Tensor]:
        return (param for each in self._optimizers for group in each.param_groups for param in group["params"])

    def _before_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        own = {id(param) for group in optimizer.param_groups for param in group["params"]}
        watched = [each for key, each in self._watched.items() if key in own]
        has_closure = len(args) > 1 or bool(kwargs)  # which empties the gradients and makes others
        if not any(each.is_carried or (each.is_as_left and not has_closure) for each in watched):
            return
        self._is_done = True
        self._findings.report(
            Rule.KEPT_GRADIENTS,
            "Gradients of an earlier step are still there when the optimizer takes them: what was accumulated before "
            "a boundary is not restored, and would be missing where a step is redone.",
            step=self._number,
        )

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


class _WatchedGradient:
    """`is_carried`: what is in the gradient came in part from an earlier step."""

    def __init__(self, param: Tensor, was_carried: bool) -> None:
        self._param, self._is_first = param, True
        self._left = _content_of(param)
        self.is_carried = was_carried

    @property
    def is_as_left(self) -> bool:
        """Nothing has been written into the gradient since the boundary, and it is not empty. Only in host memory: a
        CUDA graph writes gradients, and nobody counts that."""
        is_same = self._is_first and self._left == _content_of(self._param)
        return is_same and self._param.device.type == "cpu" and _holds_something(self._param.grad)

    def watch(self) -> Any:
        return self._param.register_hook(self._on_arrival)

    def _on_arrival(self, _: Tensor) -> None:
        """Something was there before the first gradient of this step, and nobody has emptied it since."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        is_there = _holds_something(self._param.grad)
        self.is_carried = is_there and (self._is_first or self.is_carried)
        self._is_first = False


def _content_of(param: Tensor) -> tuple[int, int]:
    """Which gradient it is, and how often it was written."""
    gradient = param.grad
    return (id(gradient), local_part(gradient)._version) if gradient is not None else (0, 0)


def _choose(params: list[Tensor]) -> list[Tensor]:
    """The first, the last and one between."""
    places = sorted({0, len(params) // 2, len(params) - 1}) if params else []
    return [params[place] for place in places][:_LOOKED_AT]


def _holds_something(gradient: Tensor | None) -> bool:
    if gradient is None or gradient.layout is not torch.strided:
        return False
    return bool(local_part(gradient.detach()).any())
