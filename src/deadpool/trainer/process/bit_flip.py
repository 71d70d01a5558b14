"""One bit of protected state that flips, as by a device that computes or keeps something wrong. For drills only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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


class GradientFlip:
    """Flips one bit of a gradient in the step that is about to begin, where backward makes it: before the reducer of
    DDP or FSDP2 gets it, and before anybody else's hooks that are put there later."""

    def __init__(self, modules: Iterable[nn.Module], number: int) -> None:
        found = [each for _, each in leaves_of(modules) if each.is_floating_point()]
        self._number, self.has_flipped = number, False
        self._hook = found[number % len(found)].register_hook(self._on_gradient) if found else None

    def _on_gradient(self, gradient: Tensor) -> Tensor | None:
        if self.has_flipped or not _can_flip(local_part(gradient)):
            return None
        self.has_flipped = True
        changed = gradient.clone()
        _flip(local_part(changed), self._number)
        return changed

    def remove(self) -> None:
        if self._hook is not None:
            self._hook.remove()


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
