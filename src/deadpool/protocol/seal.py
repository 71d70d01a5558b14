"""The seal of a finished snapshot: its rank, its version, its size and its checksums. Values only.

The geometry of the slots that snapshots lie in is here too: trainers declare it and agents compare it.

A seal is evidence (rule 8, sealing after the abort flag; rule 13, a plan needs every rank's own seal): only the agent
of the rank's own node makes one. A holder stores it unchanged, so that the digests a newcomer checks against are those
of the lost rank itself, even when a replica on another node supplies the bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec.structs import replace

from deadpool.errors import ArenaError
from deadpool.protocol.identity import Value, Version

PAGE_BYTES = 4096
HEADER_BYTES = PAGE_BYTES
PIECE_BYTES = 4 << 20
"""The unit in which regions are checksummed, and a divisor of what one frame carries."""

DAMAGED = "damaged"
"""The reason given for bytes that do not have the digest of their seal."""

Region = Literal["record", "unique", "replica"]
REGIONS: tuple[Region, ...] = ("record", "unique", "replica")


class Extent(Value, frozen=True, kw_only=True):
    """How many bytes each region of a snapshot really holds."""

    record_bytes: int
    unique_bytes: int
    replica_bytes: int


class Digest(Value, frozen=True, kw_only=True):
    """One 64-bit checksum per region; how it is computed is the data plane's business (snapshot/arena/checksums.py)."""

    record: int
    unique: int
    replica: int


class Seal(Value, frozen=True, kw_only=True):
    """Identity, size and checksums of one rank's snapshot at one version.

    `full` is False where the replica region is absent, because only record and unique were sent. Its size and digest
    are kept all the same: a newcomer that fetches those bytes from a replica checks them against this seal.
    """

    rank: int
    version: Version
    extent: Extent
    digest: Digest
    full: bool


def replica_of(seal: Seal) -> tuple[int, int]:
    """Two ranks for which this is equal have the same replica region, and each can supply it for the other."""
    return (seal.extent.replica_bytes, seal.digest.replica)


def regions_sent(seal: Seal) -> tuple[Region, ...]:
    """The regions that are there where a snapshot was sent to another node."""
    return REGIONS if seal.full else ("record", "unique")


def page_aligned(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


class Geometry(Value, frozen=True, kw_only=True):
    """Capacities of a slot, hence where its regions start. All slots of a segment share one."""

    record_capacity: int
    unique_bytes: int
    replica_bytes: int

    def capacity(self, name: Region) -> int:
        return {"record": self.record_capacity, "unique": self.unique_bytes, "replica": self.replica_bytes}[name]

    def offset(self, name: Region) -> int:
        """Where a region starts in its slot. Page-aligned."""
        start = HEADER_BYTES
        for region_name in REGIONS[: REGIONS.index(name)]:
            start += page_aligned(self.capacity(region_name))
        return start

    @property
    def slot_bytes(self) -> int:
        return self.offset("replica") + page_aligned(self.replica_bytes)

    def without_replica(self) -> Geometry:
        """The slot of a holder that is never sent the replica region."""
        return replace(self, replica_bytes=0)

    def check(self, extent: Extent, regions: Iterable[Region] = REGIONS) -> None:
        """ArenaError if a snapshot of this extent does not fit."""
        for name in regions:
            size = extent_of(extent, name)
            if not 0 <= size <= self.capacity(name):
                raise ArenaError(f"region {name!r} has {size} bytes, the slot has room for {self.capacity(name)}")


def extent_of(extent: Extent, name: Region) -> int:
    return {"record": extent.record_bytes, "unique": extent.unique_bytes, "replica": extent.replica_bytes}[name]


def digest_of(digest: Digest, name: Region) -> int:
    return {"record": digest.record, "unique": digest.unique, "replica": digest.replica}[name]


class Piece(NamedTuple):
    """A part of a snapshot that is checksummed as a whole. `size` may be 0: the record of this version is
    shorter than its region."""

    number: int  # among all pieces of the snapshot
    region: Region
    offset: int  # within the region
    size: int


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
