"""Computations of one step: what all ranks have told of each, and what differs between two. Values only.

The stages are in the order in which one follows from the other. The earliest one in which any rank differs is the
cause; ranks that differ only later have got others' numbers. Rule 35, an audited step is computed twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from deadpool.protocol.features.corruption.coordinator.votes import Evidence, Found
from deadpool.protocol.identity import Layout
from deadpool.protocol.messages import StepDigests

Computation = Mapping[int, StepDigests]
"""What ranks have told of the step in one generation, by rank."""


class Stage(Enum):
    """By the fields of `StepDigests`, causes before their effects."""

    BEFORE = "before"
    GRADIENTS = "gradients"
    REDUCED = "reduced"
    AFTER = "after"

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS = {
    Stage.BEFORE: "the state before the step",
    Stage.GRADIENTS: "its own gradients, before they were reduced",
    Stage.REDUCED: "reduced gradients",
    Stage.AFTER: "what was logged, or the state after the step",
}


@dataclass(frozen=True, slots=True)
class Difference:
    stage: Stage
    ranks: tuple[int, ...]  # that differ in this stage already


def difference(one: Computation, other: Computation) -> Difference | None:
    found = {rank: stage for rank in one if (stage := _first_stage(one[rank], other[rank])) is not None}
    if not found:
        return None
    stages = list(Stage)
    earliest = min(found.values(), key=stages.index)
    return Difference(earliest, tuple(sorted(rank for rank, stage in found.items() if stage is earliest)))


def _first_stage(one: StepDigests, other: StepDigests) -> Stage | None:
    return next((stage for stage in Stage if getattr(one, stage.value) != getattr(other, stage.value)), None)


def position_that_differs(computations: Sequence[Computation], layout: Layout) -> int | None:
    """The only position whose ranks differ first, of any two of these computations. None: there is no single one, or it
    may be a sum that has passed through others."""
    found = [difference(one, other) for one, other in itertools.combinations(computations, 2)]
    positions = {layout.position_of(rank) for each in found if each is not None for rank in each.ranks}
    if len(positions) != 1 or any(each is None or each.stage is Stage.REDUCED for each in found):
        return None
    return positions.pop()


@dataclass(frozen=True, slots=True)
class OddOne:
    """A computation that is unlike the one that another one agrees with."""

    computation: Computation
    trusted: Computation
    is_first: bool

    @property
    def difference(self) -> Difference:
        found = difference(self.computation, self.trusted)
        assert found is not None
        return found

    def node(self, node_of: Callable[[int], str]) -> str | None:
        """The node that has erred; None: it is not known which one it was."""
        found, nodes = self.difference, {node_of(rank) for rank in self.difference.ranks}
        if len(nodes) != 1 or len(found.ranks) == len(self.trusted) or found.stage is Stage.REDUCED:
            return None
        if found.stage is Stage.BEFORE and self.is_first:
            return None  # what was put back may be something else than what was there
        if found.stage is Stage.GRADIENTS and not all(told.apart for told in self.trusted.values()):
            return None
        return nodes.pop()

    def evidence(self, node: str, number: int) -> Evidence:
        stage, ranks = self.difference.stage.value, self.difference.ranks
        return Evidence(
            node=node,
            ranks=ranks,
            step=number,
            found=Found.CHANGED,
            digests=tuple(f"{getattr(self.computation[rank], stage):016x}" for rank in ranks),
            others=tuple(sorted({f"{getattr(self.trusted[rank], stage):016x}" for rank in ranks})),
        )
