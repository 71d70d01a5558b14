"""One bit that flips, as by a device that computes, keeps or receives something wrong. For drills only.

A `StepFlip` flips it inside of a step: in what a module gives on, in a gradient as backward makes it, or in one that an
optimizer takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from deadpool.config.orders import ACTIVATION, GRADIENT, RECEIVED
from deadpool.snapshot.record.tensors import local_part
from deadpool.trainer.adapters.fsdp2 import leaves_of

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BITS = {1: 0, 2: 0, 4: 12, 8: 40}
"""A bit of the mantissa, by the size of a number in bytes: the value changes by a few thousandths at most, as what
nobody would see in a loss."""


def flip_bit(what: str, modules: Iterable[nn.Module], optimizers: Iterable[Optimizer], number: int) -> bool:
    """Flips one bit of a parameter, or of a moment of the optimizer, after step `number`: of another tensor each step.
    Returns whether there is any."""
    found = list(_parameters(modules) if what == "parameter" else _moments(optimizers))
    if not found:
        return False
    _flip(found[number % len(found)], number)
    return True


def _flip(tensor: Tensor, number: int) -> None:
    with torch.no_grad():
        bits = tensor.data.view(_INTEGERS[tensor.element_size()]).view(-1)  # not counted as a write of the script
        place = number % bits.numel()
        bits[place] = bits[place] ^ (1 << _BITS[tensor.element_size()])


class StepFlip(ABC):
    """Flips one bit in the step that is about to begin."""

    def __init__(self, modules: Iterable[nn.Module], number: int) -> None:
        self._number, self.has_flipped = number, False
        self._hooks = list(self._watch(tuple(modules)))

    @abstractmethod
    def _watch(self, modules: tuple[nn.Module, ...]) -> Iterator[Any]:
        """Yields the handles of hooks."""

    def taken(self, optimizer: Optimizer) -> None:  # noqa: B027 - most have nothing to do with it
        """An optimizer is about to take gradients."""

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


class ActivationFlip(StepFlip):
    """One bit of what a module gives on in the forward pass, of one that has no modules inside."""

    def _watch(self, modules: tuple[nn.Module, ...]) -> Iterator[Any]:
        found = [each for module in modules for each in module.modules() if not any(True for _ in each.children())]
        self._calls_before = self._number % max(1, len(found))
        for each in found:
            yield each.register_forward_hook(self._on_output)

    def _on_output(self, module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
        if self.has_flipped or not isinstance(output, Tensor) or isinstance(output, DTensor) or not _can_flip(output):
            return None
        self._calls_before -= 1
        if self._calls_before >= 0 or not torch.is_grad_enabled():
            return None
        self.has_flipped = True
        changed: Tensor = _FlippedOutput.apply(output)  # type: ignore[no-untyped-call]
        return changed


class _FlippedOutput(torch.autograd.Function):
    """One bit of the largest number is another one: of a small one nothing might be left in the sums that follow."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        changed = output.clone()
        _flip(changed, int(output.abs().argmax()))
        return changed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class ReceivedFlip(StepFlip):
    """One bit of a gradient that an optimizer takes: it was reduced, so a collective gave it to this rank alone."""

    def _watch(self, modules: tuple[nn.Module, ...]) -> Iterator[Any]:
        return iter(())

    def taken(self, optimizer: Optimizer) -> None:
        taken = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
        found = [each for each in map(local_part, taken) if _can_flip(each)]
        if found and not self.has_flipped:
            self.has_flipped = True
            _flip(found[self._number % len(found)], self._number)


class GradientFlip(StepFlip):
    """One bit of a gradient where backward makes it: before the reducer of DDP or FSDP2 gets it, and before anybody
    else's hooks that are put there later."""

    def _watch(self, modules: tuple[nn.Module, ...]) -> Iterator[Any]:
        found = [each for _, each in leaves_of(modules) if each.is_floating_point()]
        if found:
            yield found[self._number % len(found)].register_hook(self._on_gradient)

    def _on_gradient(self, gradient: Tensor) -> Tensor | None:
        if self.has_flipped or not _can_flip(local_part(gradient)):
            return None
        self.has_flipped = True
        changed = gradient.clone()
        _flip(local_part(changed), self._number)
        return changed


STEP_FLIPS: dict[str, type[StepFlip]] = {ACTIVATION: ActivationFlip, GRADIENT: GradientFlip, RECEIVED: ReceivedFlip}


def _parameters(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    for module in modules:
        yield from filter(_can_flip, (local_part(parameter) for parameter in module.parameters()))


def _moments(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from filter(_can_flip, (local_part(each) for each in state.values() if isinstance(each, Tensor)))


def _can_flip(tensor: Tensor) -> bool:
    """A number of one element is a count of steps, in which nothing would be lost."""
    return tensor.is_floating_point() and tensor.numel() > 1 and tensor.is_contiguous()
