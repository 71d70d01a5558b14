"""Erasure coding of snapshots: which pieces of which ranks go into which parity. Values and pure functions only.

A group has one rank on each of n nodes. The snapshots of its ranks are cut into the pieces that checksums use. As in
RAID 5 and 6 the parity rotates: stripe s keeps its m parity blocks at the members s, s+1 .. s+m-1 (modulo n), and all
other members have a data block in it. So every node keeps parity of the same size, m / (n - m) of a snapshot, and any m
nodes may be lost: each stripe still has n - m of its blocks, and any n - m of them give all others.

What the bytes of a parity are is the business of snapshot/erasure; here is where they come from and where they lie.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import NamedTuple

from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Extent, Geometry, Piece, capacity_extent, pieces_of

ROW_ALIGNMENT = 64


class Place(NamedTuple):
    """Where a block's piece belongs: the stripe, and the row within it."""

    stripe: int
    row: int


class Stripes:
    """How a group of ranks is coded: which of its members keep the parity of each stripe."""

    __slots__ = ("group",)

    def __init__(self, group: RankGroup) -> None:
        self.group = group

    @property
    def data_blocks(self) -> int:
        """Data blocks of each stripe, which is also how many blocks bring back all others."""
        return self.group.size - self.group.parities

    # --- stripes ------------------------------------------------------------------------------------------------------

    def parity_members(self, stripe: int) -> tuple[int, ...]:
        """Returns the members that keep the parity of a stripe, in the order of the parities."""
        return tuple((stripe + parity) % self.group.size for parity in range(self.group.parities))

    def data_members(self, stripe: int) -> tuple[int, ...]:
        """Returns the members whose data is in a stripe, in the order of the coefficients."""
        parity = self.parity_members(stripe)
        return tuple(member for member in range(self.group.size) if member not in parity)

    def parity_stripes(self, member: int) -> tuple[int, ...]:
        """Stripes of which this member keeps a parity block, in the order in which it keeps them."""
        return tuple((member - parity) % self.group.size for parity in range(self.group.parities))

    def data_stripes(self, member: int) -> tuple[int, ...]:
        """Stripes that pieces of this member's snapshot are in; the pieces go round them."""
        parity = self.parity_stripes(member)
        return tuple(stripe for stripe in range(self.group.size) if stripe not in parity)

    # --- pieces -------------------------------------------------------------------------------------------------------

    def place_of(self, member: int, piece: int) -> Place:
        return Place(self.data_stripes(member)[piece % self.data_blocks], piece // self.data_blocks)

    def pieces_at(self, member: int, stripe: int, geometry: Geometry, extent: Extent) -> list[tuple[int, Piece]]:
        """The pieces of a member's snapshot in one stripe, each with its row. Those without bytes are left out."""
        stripes = self.data_stripes(member)
        if stripe not in stripes:
            return []
        mine = pieces_of(geometry, extent)[stripes.index(stripe) :: self.data_blocks]
        return [(row, piece) for row, piece in enumerate(mine) if piece.size]

    def pieces_for(self, member: int, target: int, geometry: Geometry, extent: Extent) -> list[tuple[Place, Piece]]:
        """What a member sends to another one: pieces of the stripes whose parity that one keeps."""
        return [
            (Place(stripe, row), piece)
            for stripe in self.parity_stripes(target)
            for row, piece in self.pieces_at(member, stripe, geometry, extent)
        ]

    # --- what losses leave --------------------------------------------------------------------------------------------

    def can_rebuild(self, member: int, data: Collection[int], parity: Collection[int]) -> bool:
        """Whether a member's snapshot follows from the snapshots of members `data` and what members `parity` keep."""
        return all(
            len(self.blocks_at(stripe, data, parity)) >= self.data_blocks for stripe in self.data_stripes(member)
        )

    def blocks_at(self, stripe: int, data: Collection[int], parity: Collection[int]) -> list[int]:
        """Numbers of the blocks of a stripe that are there: data blocks first, in the order of the coefficients, then
        parities."""
        there = [number for number, member in enumerate(self.data_members(stripe)) if member in data]
        after = self.data_blocks
        return there + [after + i for i, member in enumerate(self.parity_members(stripe)) if member in parity]


class ParityRow(NamedTuple):
    place: Place
    offset: int  # within the region `unique` of the parity's slot
    size: int


class ParityLayout:
    """How one member's parity lies in its slot: stripe by stripe, row by row, each row as long as its longest piece.

    It follows from the geometries of the other members' snapshots, so all versions of one geometry share it.
    """

    def __init__(self, group: RankGroup, member: int, geometries: tuple[Geometry, ...]) -> None:
        """`geometries`: of all members but this one, in their order, as they are coded, or larger."""
        self.group, self.member, self.geometries = group, member, geometries
        self.rows: list[ParityRow] = list(
            _lay_out(group, member, dict(zip(group.others(member), geometries, strict=True)))
        )
        self.at = {row.place: row for row in self.rows}

    @property
    def size_bytes(self) -> int:
        return _aligned(self.rows[-1].offset + self.rows[-1].size) if self.rows else 0

    @property
    def geometry(self) -> Geometry:
        """The geometry of the slot that the parity lies in."""
        return Geometry(record_capacity=0, unique_bytes=self.size_bytes, replica_bytes=0)


def _lay_out(group: RankGroup, member: int, geometries: dict[int, Geometry]) -> Iterator[ParityRow]:
    offset, stripes = 0, Stripes(group)
    for stripe in stripes.parity_stripes(member):
        lengths: dict[int, int] = {}
        for other in stripes.data_members(stripe):
            geometry = geometries[other]
            for row, piece in stripes.pieces_at(other, stripe, geometry, capacity_extent(geometry)):
                lengths[row] = max(lengths.get(row, 0), piece.size)
        for row in sorted(lengths):
            yield ParityRow(Place(stripe, row), offset, lengths[row])
            offset = _aligned(offset + lengths[row])


@functools.lru_cache(maxsize=64)
def parity_layout(group: RankGroup, member: int, geometries: tuple[Geometry, ...]) -> ParityLayout:
    """Cached: a slot is laid out for every contribution to it, and the layout has a row for each piece."""
    return ParityLayout(group, member, geometries)


def _aligned(offset: int) -> int:
    return -(-offset // ROW_ALIGNMENT) * ROW_ALIGNMENT
