"""Receives one snapshot into a slot of this node, over one or more streams.

When it is settled it is verified, its header is written and `stored` is called; otherwise `dropped` is called. A header
is never written on a slot that did not arrive whole.
"""

from __future__ import annotations

from collections.abc import Callable

from deadpool.protocol.causes import Refusal
from deadpool.protocol.seal import Geometry, Seal, regions_sent
from deadpool.snapshot.arena.slot import clear_seal, region, write_seal
from deadpool.snapshot.transfer.arrival import Arrival
from deadpool.snapshot.transfer.callbacks import Callbacks
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Chunk
from deadpool.snapshot.transfer.received_pieces import ReceivedPieces


class Incoming(Arrival):
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
    ) -> None:
        super().__init__(seal=seal, lead=lead, forget=forget)
        clear_seal(view)
        self._view = view
        self._regions = {name: region(view, geometry, seal.extent, name) for name in regions_sent(seal)}
        self._callbacks = callbacks
        self._received = ReceivedPieces(seal.extent, regions_sent(seal))

    def _claim(self, chunk: Chunk) -> None:
        self._received.claim(chunk)

    def _read(self, connection: Connection, chunk: Chunk) -> list[int]:
        return connection.receive_pieces(self._regions[chunk.region][chunk.offset : chunk.offset + chunk.size])

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
