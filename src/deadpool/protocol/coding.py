"""Erasure coding of snapshots: which pieces of which ranks go into which parity. Values and pure functions only.

A group has one rank on each of n nodes. The snapshots of its ranks are cut into the pieces that checksums use. As in
RAID 5 and 6 the parity rotates: stripe s keeps its m parity blocks at the members s, s+1 .. s+m-1 (modulo n), and all
other members have a data block in it. So every node keeps parity of the same size, m / (n - m) of a snapshot, and any m
nodes may be lost: each stripe still has n - m of its blocks, and any n - m of them give all others.

What the bytes of a parity are is the business of snapshot/erasure; here is where they come from and where they lie.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from deadpool.protocol.identity import Layout, Value
from deadpool.protocol.seal import PIECE_BYTES, REGIONS, Extent, Geometry, Region, extent_of

ROW_ALIGNMENT = 64
MOST_MEMBERS = 32
MOST_PARITIES = 4
"""Up to these, every pattern of losses was tried on the coefficients (tests/snapshot/test_galois.py)."""
_SCHEME = re.compile(r"copies=(\d+)|rs\((\d+),\s*(\d+)\)")


class Scheme(Value, frozen=True, kw_only=True):
    """How snapshots are protected: by whole copies on so many other nodes, or by groups in which up to `data` snapshots
    share `parities` blocks."""

    copies: int = 0
    data: int = 0
    parities: int = 0

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """ValueError where `text` is neither copies=N nor rs(K,M)."""
        match = _SCHEME.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is neither copies=N nor rs(K,M)")
        copies, data, parities = match.groups()
        if copies is not None:
            return cls(copies=int(copies))
        data_blocks, parity_blocks = int(data), int(parities)
        if not (1 <= parity_blocks <= min(data_blocks, MOST_PARITIES) and data_blocks + parity_blocks <= MOST_MEMBERS):
            raise ValueError(f"{text!r}: rs(K,M) needs 1 <= M <= K, M <= {MOST_PARITIES} and K + M <= {MOST_MEMBERS}")
        return cls(data=data_blocks, parities=parity_blocks)

    @property
    def is_coded(self) -> bool:
        return self.parities > 0

    @property
    def losses(self) -> int:
        """How many nodes may be lost at once, of a rank and its holders or of a group."""
        return self.parities or self.copies

    def group_count(self, positions: int) -> int:
        """Returns into how many groups so many positions are dealt out: as few as the scheme allows."""
        largest, smallest = self.data + self.parities, self.parities + 1
        return max(1, min(-(-positions // largest), positions // smallest))

    def held_share(self, positions: int) -> float:
        """How many snapshots a node keeps for others, for each of its own: fewer than one where they are coded in
        groups that are large enough. Pieces are not counted, of which small snapshots have too few."""
        if not self.is_coded:
            return float(self.copies)
        smallest = positions // self.group_count(positions)
        return self.parities / (smallest - self.parities) if smallest > self.parities else math.inf

    def __str__(self) -> str:
        return f"rs({self.data},{self.parities})" if self.is_coded else f"copies={self.copies}"


class Piece(NamedTuple):
    """A part of a snapshot that is checksummed and coded as a whole. `size` may be 0: the record of this version is
    shorter than its region."""

    number: int  # among all pieces of the snapshot
    region: Region
    offset: int  # within the region
    size: int


class Place(NamedTuple):
    """Where a block's piece belongs: the stripe, and the row within it."""

    stripe: int
    row: int


class NodeGroup(Value, frozen=True, kw_only=True):
    """Positions whose ranks are coded together: those with the same place on their nodes form a group each."""

    positions: tuple[int, ...]
    parities: int

    def of(self, rank: int, layout: Layout) -> CodingGroup:
        """The group that this rank is in."""
        place = layout.local_rank(rank)
        return CodingGroup(ranks=tuple(layout.ranks_at(p)[place] for p in self.positions), parities=self.parities)


class CodingGroup(Value, frozen=True, kw_only=True):
    """Ranks that are coded together, one per node. A member is the index of a rank in `ranks`."""

    ranks: tuple[int, ...]
    parities: int

    def __post_init__(self) -> None:
        """A group that arrives may claim anything; msgspec turns this error into a refusal of the message."""
        sizes_fit = 1 <= self.parities < len(self.ranks) <= MOST_MEMBERS and self.parities <= MOST_PARITIES
        if not sizes_fit or len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"no group: {self.ranks} with {self.parities} parities")

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def data_blocks(self) -> int:
        """Data blocks of each stripe, which is also how many blocks bring back all others."""
        return self.size - self.parities

    def member_of(self, rank: int) -> int:
        return self.ranks.index(rank)

    # --- stripes ------------------------------------------------------------------------------------------------------

    def parity_members(self, stripe: int) -> tuple[int, ...]:
        """Returns the members that keep the parity of a stripe, in the order of the parities."""
        return tuple((stripe + parity) % self.size for parity in range(self.parities))

    def data_members(self, stripe: int) -> tuple[int, ...]:
        """Returns the members whose data is in a stripe, in the order of the coefficients."""
        parity = self.parity_members(stripe)
        return tuple(member for member in range(self.size) if member not in parity)

    def parity_stripes(self, member: int) -> tuple[int, ...]:
        """Stripes of which this member keeps a parity block, in the order in which it keeps them."""
        return tuple((member - parity) % self.size for parity in range(self.parities))

    def data_stripes(self, member: int) -> tuple[int, ...]:
        """Stripes that pieces of this member's snapshot are in; the pieces go round them."""
        parity = self.parity_stripes(member)
        return tuple(stripe for stripe in range(self.size) if stripe not in parity)

    def others(self, member: int) -> tuple[int, ...]:
        return tuple(other for other in range(self.size) if other != member)

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


@functools.lru_cache(maxsize=64)
def pieces_of(geometry: Geometry, extent: Extent) -> tuple[Piece, ...]:
    """All pieces of a snapshot. Their numbers follow from the geometry alone, so that they are the same in every
    version; the sizes are those of this one. A region that is not sent has no room in the geometry."""
    pieces: list[Piece] = []
    for region in REGIONS:
        size = min(extent_of(extent, region), geometry.capacity(region))
        for offset in range(0, geometry.capacity(region), PIECE_BYTES):
            pieces.append(Piece(len(pieces), region, offset, max(0, min(PIECE_BYTES, size - offset))))
    return tuple(pieces)


def capacity_extent(geometry: Geometry) -> Extent:
    """A snapshot that fills its slot."""
    return Extent(
        record_bytes=geometry.record_capacity,
        unique_bytes=geometry.unique_bytes,
        replica_bytes=geometry.replica_bytes,
    )


class ParityRow(NamedTuple):
    place: Place
    offset: int  # within the region `unique` of the parity's slot
    size: int


class ParityLayout:
    """How one member's parity lies in its slot: stripe by stripe, row by row, each row as long as its longest piece.

    It follows from the geometries of the other members' snapshots, so all versions of one geometry share it.
    """

    def __init__(self, group: CodingGroup, member: int, geometries: tuple[Geometry, ...]) -> None:
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


def _lay_out(group: CodingGroup, member: int, geometries: dict[int, Geometry]) -> Iterator[ParityRow]:
    offset = 0
    for stripe in group.parity_stripes(member):
        lengths: dict[int, int] = {}
        for other in group.data_members(stripe):
            geometry = geometries[other]
            for row, piece in group.pieces_at(other, stripe, geometry, capacity_extent(geometry)):
                lengths[row] = max(lengths.get(row, 0), piece.size)
        for row in sorted(lengths):
            yield ParityRow(Place(stripe, row), offset, lengths[row])
            offset = _aligned(offset + lengths[row])


@functools.lru_cache(maxsize=64)
def parity_layout(group: CodingGroup, member: int, geometries: tuple[Geometry, ...]) -> ParityLayout:
    """Cached: a slot is laid out for every contribution to it, and the layout has a row for each piece."""
    return ParityLayout(group, member, geometries)


def _aligned(offset: int) -> int:
    return -(-offset // ROW_ALIGNMENT) * ROW_ALIGNMENT
