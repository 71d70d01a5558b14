"""All checksums of snapshots: of pieces, of regions, of seals, of a job's state. No torch.

The checksum of a region is xxh3_64 over the concatenated little-endian xxh3_64 of its pieces (PIECE_BYTES each, the
last one shorter). So pieces can be checked in any order, by several threads, while they are still warm in the cache.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash

from deadpool.protocol.seal import PIECE_BYTES

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
