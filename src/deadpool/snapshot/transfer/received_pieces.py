"""Which pieces of a snapshot have arrived, and whether together they are what was promised. Values and arithmetic only.

Not locked: whoever shares a tally between streams guards it.
"""

from __future__ import annotations

from deadpool.errors import WireError
from deadpool.protocol.seal import NOT_AS_SEALED, Digest, Extent, Region, digest_of, extent_of
from deadpool.snapshot.checksums import PIECE_BYTES, combine_pieces
from deadpool.snapshot.transfer.frames import Chunk


class Tally:
    def __init__(self, extent: Extent, regions: tuple[Region, ...]) -> None:
        self._digests: dict[Region, list[int]] = {}
        self._claimed: dict[Region, bytearray] = {}
        self._there: dict[Region, bytearray] = {}
        self._extent = extent
        for name in regions:
            count = -(-extent_of(extent, name) // PIECE_BYTES)
            self._digests[name] = [0] * count
            self._claimed[name] = bytearray(count)
            self._there[name] = bytearray(count)
        self._missing = sum(len(digests) for digests in self._digests.values())

    @property
    def complete(self) -> bool:
        return self._missing == 0

    def claim(self, chunk: Chunk) -> None:
        """Reserve a chunk for one writer. No byte has two (checker l)."""
        first, last = self._pieces(chunk)
        claimed = self._claimed.get(chunk.region)
        if claimed is None or any(claimed[first:last]):
            raise WireError(f"bytes {chunk.offset}.. of region {chunk.region!r} were not due")
        claimed[first:last] = b"\1" * (last - first)

    def arrived(self, chunk: Chunk, digests: list[int]) -> None:
        first, last = self._pieces(chunk)
        assert len(digests) == last - first
        self._digests[chunk.region][first:last] = digests
        self._there[chunk.region][first:last] = b"\1" * (last - first)
        self._missing -= len(digests)

    def leading_bytes(self, name: Region) -> int:
        """Of a region, without a gap from its beginning."""
        gap = self._there[name].find(0)
        return extent_of(self._extent, name) if gap < 0 else gap * PIECE_BYTES

    def mismatch(self, expect: Digest) -> str | None:
        """None where every region is what was expected; else which one is not, in words."""
        assert self.complete
        for name, digests in self._digests.items():
            actual, expected = combine_pieces(digests), digest_of(expect, name)
            if actual != expected:
                return f"{NOT_AS_SEALED}: region {name!r} has digest {actual:016x} where {expected:016x} was due"
        return None

    @staticmethod
    def _pieces(chunk: Chunk) -> tuple[int, int]:
        return chunk.offset // PIECE_BYTES, -(-(chunk.offset + chunk.size) // PIECE_BYTES)
