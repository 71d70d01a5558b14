"""Which errors are injected, and what has to be said of each. No I/O.

Where ranks exchange more than parameters and gradients in a step, an error before the gradients are reduced spreads to
others, and nobody is named. Nor is anybody for what a rank has received, since it passed through others. Of a copy that
is damaged, in the arena or on its way, the event says whose it is, and no device is blamed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from deadpool.config.orders import ACTIVATION, FLIPS, GRADIENT, IN_COPIES, RECEIVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The job of a layout."""

    layout: str
    nodes: int
    nproc_per_node: int = 1
    apart: bool = True  # ranks exchange nothing but parameters and gradients

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node

    def names(self, flips: str) -> bool:
        """Whether the rule names the rank of such an error."""
        return flips != RECEIVED and (self.apart or flips not in (ACTIVATION, GRADIENT))


SHAPES = {
    shape.layout: shape
    for shape in (
        Shape(layout="ddp", nodes=2),
        Shape(layout="fsdp2", nodes=2),
        Shape(layout="hsdp", nodes=4),
        Shape(layout="tp", nodes=2, apart=False),
        Shape(layout="3d", nodes=4, nproc_per_node=2, apart=False),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """One bit that flips in a step that is audited, or in a copy."""

    number: int
    flips: str
    rank: int
    in_redo: bool  # where the step is computed again, and not the first time

    @property
    def is_in_copy(self) -> bool:
        return self.flips in IN_COPIES


def draw(shape: Shape, count: int, seed: int, places: Sequence[str] = tuple(FLIPS)) -> list[Error]:
    """Each place comes once before one comes twice. In one of three the second computation is the wrong one."""
    rng = random.Random(f"{seed} {shape.layout}")
    bag: list[str] = []
    errors = []
    for number in range(count):
        bag = bag or rng.sample(sorted(places), len(places))
        flips, rank, in_redo = bag.pop(), rng.randrange(shape.world_size), rng.random() < 1 / 3
        errors.append(Error(number=number, flips=flips, rank=rank, in_redo=in_redo and flips not in IN_COPIES))
    return errors
