"""Snapshots that arrive at this node.

`ArrivedPieces` tracks which pieces of a snapshot have arrived, and whether their digests are those of the seal.

It has no lock: the caller guards it if streams share it.

`SnapshotArrival` receives one snapshot into a slot of this node, over one or more streams.

When it is settled it is verified, its header is written and `stored` is called; otherwise `dropped` is called. A
header is never written on a slot that did not arrive whole.
"""

from __future__ import annotations

from collections.abc import Callable

from deadpool.errors import WireError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.seal import DAMAGED, Digest, Extent, Geometry, Region, Seal, digest_of, extent_of, regions_sent
from deadpool.snapshot.arena.checksums import PIECE_BYTES, combine_pieces
from deadpool.snapshot.arena.slot import clear_seal, region, write_seal
from deadpool.snapshot.transfer.arrival import Arrival
from deadpool.snapshot.transfer.callbacks import Callbacks
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Chunk
from deadpool.snapshot.transfer.transport import OverTcp, Transport, Window
from deadpool.snapshot.transfer.windows import read_window


class ArrivedPieces:
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
        """Reserves a chunk for one writer: no byte may have two (checker (l), one writer per slot)."""
        first, last = self._pieces(chunk)
        claimed = self._claimed.get(chunk.region)
        if claimed is None or any(claimed[first:last]):
            raise WireError(f"bytes {chunk.offset}.. of region {chunk.region!r} were sent twice or not asked for")
        claimed[first:last] = b"\1" * (last - first)

    def give_back(self, chunk: Chunk) -> None:
        """Takes a claim back whose writer has ended without the bytes: another may claim them."""
        first, last = self._pieces(chunk)
        self._claimed[chunk.region][first:last] = bytes(last - first)

    def arrived(self, chunk: Chunk, digests: list[int]) -> None:
        first, last = self._pieces(chunk)
        assert len(digests) == last - first
        self._digests[chunk.region][first:last] = digests
        self._there[chunk.region][first:last] = b"\1" * (last - first)
        self._missing -= len(digests)

    def leading_bytes(self, name: Region) -> int:
        """Returns how many bytes of a region have arrived without a gap from its beginning."""
        gap = self._there[name].find(0)
        return extent_of(self._extent, name) if gap < 0 else gap * PIECE_BYTES

    def mismatch(self, expect: Digest) -> str | None:
        """Returns None if every region has the expected digest, else a text that names the first that has not."""
        assert self.complete
        for name, digests in self._digests.items():
            actual, expected = combine_pieces(digests), digest_of(expect, name)
            if actual != expected:
                return f"{DAMAGED}: region {name!r} has digest {actual:016x} where {expected:016x} was expected"
        return None

    @staticmethod
    def _pieces(chunk: Chunk) -> tuple[int, int]:
        return chunk.offset // PIECE_BYTES, -(-(chunk.offset + chunk.size) // PIECE_BYTES)


class SnapshotArrival(Arrival):
    """A snapshot that arrives."""

    def __init__(
        self,
        *,
        seal: Seal,
        geometry: Geometry,
        view: memoryview,
        lead: Connection,
        callbacks: Callbacks,
        forget: Callable[[], None],
        transport: Transport | None = None,
    ) -> None:
        super().__init__(seal=seal, lead=lead, forget=forget)
        self._transport = transport or OverTcp()
        clear_seal(view)
        self._view = view
        self._regions = {name: region(view, geometry, seal.extent, name) for name in regions_sent(seal)}
        self._callbacks = callbacks
        self._received = ArrivedPieces(seal.extent, regions_sent(seal))

    def _claim(self, chunk: Chunk) -> None:
        self._received.claim(chunk)

    def _read(self, connection: Connection, chunk: Chunk) -> list[int]:
        return connection.receive_pieces(self._place(chunk))

    @property
    def takes_windows(self) -> bool:
        return self._transport.reads

    def _take(self, connection: Connection, chunk: Chunk, window: Window) -> list[int] | None:
        return read_window(self._transport, connection, window, self._place(chunk))

    def _return(self, chunk: Chunk) -> None:
        self._received.give_back(chunk)

    def _place(self, chunk: Chunk) -> memoryview:
        return self._regions[chunk.region][chunk.offset : chunk.offset + chunk.size]

    def _arrived(self, chunk: Chunk, digests: list[int]) -> None:
        self._received.arrived(chunk, digests)

    def _is_complete(self) -> bool:
        return self._received.complete

    def _mismatch(self) -> str | None:
        return self._received.mismatch(self.seal.digest)

    def _store(self) -> None:
        write_seal(self._view, self.seal)
        try:
            self._callbacks.stored(self.seal)
        except BaseException as error:
            clear_seal(self._view)
            self._drop(Refusal.BROKEN_OFF, f"the holder could not record it: {error}")
            raise
        self._tell_stored()

    def _drop(self, refusal: Refusal, reason: str) -> None:
        self._callbacks.dropped(self.seal, reason)
        self._tell_refused(refusal, reason)
