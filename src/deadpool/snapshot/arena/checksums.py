"""All checksums of snapshots.

`StateHasher`: all checksums of snapshots: of pieces, of regions, of seals, of a job's state. No torch.

The checksum of a region is xxh3_64 over the concatenated little-endian xxh3_64 of its pieces (PIECE_BYTES each, the
last one shorter). So pieces can be checked in any order, by several threads, while they are still warm in the cache.

`PieceDigests`: the checksums of a snapshot's single pieces, which the digests of its seal are made of. No torch.

A seal tells whether a region is whole. Who takes pieces from several nodes, or adds them to a parity, has to know it
of each piece: so the node that seals a slot keeps this list and tells it to others, and they believe it only if it
gives the digests of the seal.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import xxhash

from deadpool.protocol.seal import (
    DAMAGED,
    PIECE_BYTES,
    REGIONS,
    Digest,
    Extent,
    Piece,
    Region,
    Seal,
    digest_of,
    extent_of,
    regions_sent,
)

__all__ = ["HASHING_THREADS", "PIECE_BYTES", "StateHasher", "checksum", "combine_pieces", "digest_region", "pieces"]

HASHING_THREADS = max(1, min(4, (os.cpu_count() or 1) // 4))
"""Threads that checksum one slot: a core does 10 GB/s, a device delivers 55."""


def checksum(data: bytes | memoryview) -> int:
    """Returns the checksum of a piece, or of anything else that is read as a whole."""
    return xxhash.xxh3_64_intdigest(data)


def combine_pieces(digests: Sequence[int]) -> int:
    """The digest of a region from those of its pieces, in their order."""
    return checksum(struct.pack(f"<{len(digests)}Q", *digests))


def pieces(view: memoryview) -> list[memoryview]:
    return [view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)]


def digest_region(view: memoryview, pool: ThreadPoolExecutor | None = None) -> int:
    """Checksum of one region. xxhash releases the GIL on large pieces, so the threads of a pool really run in
    parallel."""
    parts = pieces(view)
    return combine_pieces(list(pool.map(checksum, parts) if pool else map(checksum, parts)))


class StateHasher:
    """Checksum of a whole state, which is read part by part: 128 bits, because people compare it across runs."""

    def __init__(self) -> None:
        self._hasher = xxhash.xxh3_128()

    def update(self, data: bytes | memoryview) -> None:
        self._hasher.update(data)

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


_WORD_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceDigests:
    """Per region, in order. A region that was not sent has none."""

    record: tuple[int, ...] = ()
    unique: tuple[int, ...] = ()
    replica: tuple[int, ...] = ()

    def of(self, name: Region) -> tuple[int, ...]:
        return {"record": self.record, "unique": self.unique, "replica": self.replica}[name]

    def at(self, piece: Piece) -> int:
        return self.of(piece.region)[piece.offset // PIECE_BYTES]

    @property
    def digest(self) -> Digest:
        """What the seal of the whole slot has to say."""
        return Digest(**{name: combine_pieces(self.of(name)) for name in REGIONS})

    def mismatch(self, seal: Seal) -> str | None:
        """Returns None if this is the list of the regions of a snapshot that were sent, else why it is not."""
        for name in regions_sent(seal):
            digests, expected = self.of(name), digest_of(seal.digest, name)
            if len(digests) != _count(seal.extent, name) or combine_pieces(digests) != expected:
                return f"{DAMAGED}: the digests of the pieces of region {name!r} do not give {expected:016x}"
        return None

    def pack(self, seal: Seal) -> bytes:
        """Packs the digests of the regions that are sent."""
        words = [digest for name in regions_sent(seal) for digest in self.of(name)]
        return struct.pack(f"<{len(words)}Q", *words)


def packed_bytes(seal: Seal) -> int:
    """How long the packed list of a snapshot is."""
    return _WORD_BYTES * sum(_count(seal.extent, name) for name in regions_sent(seal))


def unpack_digests(data: bytes | bytearray | memoryview, seal: Seal) -> PieceDigests:
    """The list of a snapshot; `data` has packed_bytes(seal) bytes. It is not checked against the seal yet."""
    found: dict[str, tuple[int, ...]] = {}
    start = 0
    for name in regions_sent(seal):
        count = _count(seal.extent, name)
        found[name] = struct.unpack_from(f"<{count}Q", data, start)
        start += count * _WORD_BYTES
    return PieceDigests(**found)


def digest_pieces(view: memoryview, pool: ThreadPoolExecutor | None = None) -> tuple[int, ...]:
    """Checksums of the pieces of one region. xxhash releases the GIL on large pieces, so the threads of a pool really
    run in parallel."""
    parts = pieces(view)
    return tuple(pool.map(checksum, parts) if pool else map(checksum, parts))


def _count(extent: Extent, name: Region) -> int:
    return -(-extent_of(extent, name) // PIECE_BYTES)
