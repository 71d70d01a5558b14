"""Finds out whether a script writes into parameters in ways that torch does not count: through `.data`, by numpy, or
through another tensor over the same memory.

A copy is made while the next step runs, and is given up if the counters of its tensors show a write meanwhile. Nothing
shows an uncounted one, so that a copy could be half of this version and half of the next. But elements differ then
although the counter is the same: from then on copies are made at the end of a step. They are compared before the
optimizer steps, since fused ones are not counted either and disturb no copy; in a step without an optimizer at its end.
Only host memory is looked at, since the host would wait for a device; and only some elements of some tensors, in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from deadpool.snapshot import cures
from deadpool.snapshot.bulk import CopyPlan
from deadpool.snapshot.tensors import integer_view

_TENSORS, _ELEMENTS = 16, 16


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    tensor: Tensor  # of the plan: it stays at its memory whatever the script puts under its parameter
    count: int
    elements: list[int]

    @property
    def was_overwritten(self) -> bool:
        now = _sample(self.tensor)
        return now.count == self.count and now.elements != self.elements


class UncountedWrites:
    """Only the main thread may use it, at boundaries and at rest."""

    def __init__(self) -> None:
        self.found = False
        self._samples: list[_Sample] = []
        self._is_compared = True
        self._next = 0

    def compare(self) -> None:
        """Compares the samples, if they have not been compared since they were taken."""
        if not self._is_compared:
            self._is_compared = True
            self.found = self.found or self.show_now

    def look(self, plan: CopyPlan) -> None:
        """Compares the samples of the last call, and takes new ones."""
        self.compare()
        self._is_compared = False
        self._samples = [] if self.found or cures.is_off("D3") else list(map(_sample, self._choose(plan)))

    @property
    def show_now(self) -> bool:
        """Returns whether something was overwritten since the samples were taken."""
        return any(sample.was_overwritten for sample in self._samples)

    def _choose(self, plan: CopyPlan) -> Iterator[Tensor]:
        tensors = [
            local
            for key, local in plan.locals.items()
            if key[0] == "param" and local.device.type == "cpu" and local.is_contiguous() and local.numel()
        ]
        start, self._next = self._next, (self._next + _TENSORS) % max(len(tensors), 1)
        return itertools.islice(itertools.chain(tensors[start:], tensors[:start]), _TENSORS)


def _sample(tensor: Tensor) -> _Sample:
    flat = integer_view(tensor).view(-1)
    elements = flat[:: max(1, flat.numel() // _ELEMENTS)].tolist()
    return _Sample(tensor, tensor._version, elements)
