"""What a finished snapshot says about itself: whose it is, which version, how large, and its checksums. Values only.

Also the geometry of the slots that snapshots lie in: sizes that trainers declare and agents compare.

A seal is evidence (rule 8, sealing after the abort flag; rule 13, a plan needs every rank's own seal): only the agent
of the rank's own node makes one. A holder stores it unchanged, so that the digests a newcomer checks against are those
of the lost rank itself, even when a replica on another node supplies the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from deadpool.errors import ArenaError
from deadpool.protocol.identity import Version

PAGE_BYTES = 4096
HEADER_BYTES = PAGE_BYTES

NOT_AS_SEALED = "not as sealed"
"""Said of bytes that do not have the digest that their seal gives."""

Region = Literal["record", "unique", "replica"]
REGIONS: tuple[Region, ...] = ("record", "unique", "replica")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How many bytes each region of a snapshot really holds."""

    record_bytes: int
    unique_bytes: int
    replica_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """One 64-bit checksum per region; how it is computed is the data plane's business (snapshot/slot.py)."""

    record: int
    unique: int
    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Identity, size and checksums of one rank's snapshot at one version.

    `full` is False where the replica region is absent (record and unique only were sent). Its size and digest are
    kept all the same: whoever fetches those bytes from a replica checks them against this seal.
    """

    rank: int
    version: Version
    extent: Extent
    digest: Digest
    full: bool


def replica_of(seal: Seal) -> tuple[int, int]:
    """What tells one replica region from another. Equal for two ranks: each can supply it for the other."""
    return (seal.extent.replica_bytes, seal.digest.replica)


def page_aligned(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
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


ALL: tuple[type, ...] = (Digest, Extent, Geometry, Seal)
"""What may travel in messages."""
