"""Which positions hold the copies of which: never on the same node and, where racks are given, not in the same rack.

The placement is a pure function of positions and of the racks of the nodes that sit there. So a spare of the lost
node's rack moves only the copies that were lost. Without racks, or with a single one, it is a ring. Where a spare of
another rack is seated, copies that are still well placed stay where they are. Where positions are protected in groups,
a feature makes the placement (`protection/redundancy.py`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deadpool.protocol.identity import Layout
from deadpool.protocol.inventory_batches import JointCopy
from deadpool.protocol.schemes import NodeGroup, Scheme

if TYPE_CHECKING:
    from deadpool.protocol.coordinator.recovery.inventory_index import VersionIndex

Rack = str | None
"""None: the rack of this node is not known, so it counts as a rack of its own."""
COPIES_NOWHERE = Scheme()
LOAD_LIMIT = 2
"""How many times the even share a node may be asked to hold. Beyond that a copy stays in its own rack: the memory of a
small rack must not have to hold the whole job."""


def domains(racks: Sequence[Rack]) -> list[Rack | int]:
    """What may fail together. One rack for all says nothing: then every node counts as a domain of its own."""
    if len(set(racks)) == 1:
        return list(range(len(racks)))
    return [position if rack is None else rack for position, rack in enumerate(racks)]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where copies are to lie, and what counts as one. A feature that protects ranks in groups derives its own."""

    racks: tuple[Rack, ...]  # of the node at each position
    holders: tuple[tuple[int, ...], ...]  # per position: the positions that hold its copies, or joint copies
    scheme: Scheme = COPIES_NOWHERE
    extra: frozenset[int] = frozenset()  # positions with one holder more than the scheme says
    groups: tuple[NodeGroup, ...] = ()  # that protect their members together: then every position is in one of them

    def of(self, position: int) -> tuple[int, ...]:
        return self.holders[position]

    def count(self, layout: Layout) -> int:
        """Places of a version that is complete: at home and at all holders, of every rank."""
        return layout.world_size + layout.per_node * sum(map(len, self.holders))

    @property
    def losses(self) -> int:
        """How many nodes of a version that is complete may be lost at once, whichever they are. Where ranks count on
        bytes of others, or several positions have one node, it may be fewer."""
        return min(map(len, self.holders), default=0)

    def group_of(self, position: int) -> NodeGroup | None:
        return self._group_of.get(position)

    @functools.cached_property
    def _group_of(self) -> dict[int, NodeGroup]:
        return {position: group for group in self.groups for position in group.positions}

    def held_by(self, position: int) -> tuple[int, ...]:
        return self._owners.get(position, ())

    @functools.cached_property
    def _owners(self) -> dict[int, tuple[int, ...]]:
        """Returns, by position, the positions whose copies it holds."""
        owners: dict[int, tuple[int, ...]] = {}
        for owner, holders in enumerate(self.holders):
            for holder in holders:
                owners[holder] = (*owners.get(holder, ()), owner)
        return owners

    @functools.cached_property
    def same_rack(self) -> tuple[int, ...]:
        """Positions that the loss of their rack would leave without a copy: there was no better place."""
        return tuple(p for p, holders in enumerate(self.holders) if self._is_lost_with_its_rack(p, holders))

    def _is_lost_with_its_rack(self, position: int, holders: Sequence[int]) -> bool:
        return self._count(self.racks[position], holders) > 0

    def would_move(self, position: int, rack: Rack) -> int:
        """Copies that would have to move if the node at `position` stood in `rack`."""
        return self._count(rack, self.of(position)) + self._count(rack, self.held_by(position))

    def _count(self, rack: Rack, positions: Sequence[int]) -> int:
        return sum(rack is not None and self.racks[p] == rack for p in positions)

    # --- what counts as a copy ----------------------------------------------------------------------------------------

    @property
    def counts_copies(self) -> bool:
        """A whole copy at a holder is what this placement asks for."""
        return True

    def covers(self, joint: JointCopy, layout: Layout) -> bool:
        """The joint copy is as good as a copy of each rank that it is of."""
        return False

    def is_stored(self, index: VersionIndex, node: str, holder: int, ranks: range, layout: Layout) -> bool:
        """The node, at position `holder`, has what it is to keep for these ranks."""
        return index.is_held_by(node, ranks)


NO_PLACEMENT = Placement(racks=(), holders=())


def place(
    racks: Sequence[Rack],
    scheme: Scheme,
    before: Placement = NO_PLACEMENT,
    extra: frozenset[int] = frozenset(),
) -> Placement:
    """`before` is the placement of the plan before, of the same positions; `extra` are positions that get one holder
    more, where there are nodes enough."""
    if (before.racks, before.scheme, before.extra) == (tuple(racks), scheme, extra):
        return before
    known = before if before.scheme == scheme else NO_PLACEMENT
    counts = [min(scheme.copies + (p in extra), len(racks) - 1) for p in range(len(racks))]
    builder = _PlacementBuilder(racks, counts, known)
    builder.keep_what_is_well_placed()
    builder.fill()
    holders = tuple(map(tuple, builder.holders))
    return Placement(racks=tuple(racks), holders=holders, scheme=scheme, extra=extra)


class _PlacementBuilder:
    """Positions form a ring, rack by rack. A step as wide as the widest rack leads out of every rack, and takes no two
    positions to the same one. Where no rack is wider than half of the ring, that alone spreads copies evenly.
    Elsewhere, and beside copies that stay, the least loaded position of another rack is taken."""

    def __init__(self, racks: Sequence[Rack], counts: Sequence[int], before: Placement) -> None:
        self._counts, self._before = counts, before.holders
        self._most = max(counts, default=0)
        self._domains = domains(racks)
        sizes = Counter(self._domains)  # in order of first appearance
        self._widest, self._others = max(sizes.values(), default=1), max(1, len(sizes) - 1)
        order = {domain: index for index, domain in enumerate(sizes)}
        self._ring = sorted(range(len(racks)), key=lambda p: order[self._domains[p]])
        self._index = {position: index for index, position in enumerate(self._ring)}
        self._load = [0] * len(racks)
        self.holders: list[list[int]] = [[] for _ in racks]

    def keep_what_is_well_placed(self) -> None:
        for position, holders in enumerate(self._before):
            for holder in holders:
                full = len(self.holders[position]) >= self._counts[position]
                if not full and self._domains[holder] != self._domains[position]:
                    self._take(position, holder)

    def fill(self) -> None:
        for nth in range(self._most):
            for position in self._ring:
                if len(self.holders[position]) <= nth < self._counts[position]:
                    self._take(position, self._best(position, nth))

    def _take(self, position: int, holder: int) -> None:
        self.holders[position].append(holder)
        self._load[holder] += 1

    def _best(self, position: int, nth: int) -> int:
        step = self._widest * (1 + nth % self._others) + nth // self._others
        start = self._index[position] + step
        ahead = self._ring[start % len(self._ring)]
        if self._load[ahead] <= nth and self._is_new_rack(position, ahead):
            return ahead
        others = (p for p in self._ring if p != position and p not in self.holders[position])
        return min(others, key=lambda holder: self._cost(position, holder, start))

    def _is_new_rack(self, position: int, holder: int) -> bool:
        """Tells whether the holder's rack is neither the position's own nor that of another of its holders."""
        return all(self._domains[p] != self._domains[holder] for p in (position, *self.holders[position]))

    def _cost(self, position: int, holder: int, start: int) -> tuple[int, bool, bool, int, int]:
        inside = self._domains[position] == self._domains[holder]
        full = self._load[holder] >= LOAD_LIMIT * self._most
        moved = bool(self._before) and holder not in self._before[position]
        distance = (self._index[holder] - start) % len(self._ring)
        worse = 1 if inside else 2 * full
        return (worse, moved, not self._is_new_rack(position, holder), self._load[holder], distance)
