"""Receives one snapshot into a slot of this node, over one or more streams.

The last writer settles it, exactly once: it verifies the snapshot, writes the header and calls `stored`, or it calls
`dropped`. It never calls `dropped` while a stream still writes into the slot (rule 11, one writer per slot), and never
writes a header on a slot that did not arrive whole.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from deadpool.errors import TransferError
from deadpool.protocol.seal import REGIONS, Geometry, Region, Seal
from deadpool.snapshot.slot import clear_seal, region, write_seal
from deadpool.snapshot.transfer.callbacks import Callbacks
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Chunk, Kind
from deadpool.snapshot.transfer.received_pieces import ReceivedPieces


def regions_sent(seal: Seal) -> tuple[Region, ...]:
    return REGIONS if seal.full else ("record", "unique")


class Incoming:
    """A snapshot that arrives. The sessions of all its streams share it; `lead` asked for it and gets the answer."""

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
        clear_seal(view)
        self.seal = seal
        self._view = view
        self._regions = {name: region(view, geometry, seal.extent, name) for name in regions_sent(seal)}
        self._lead = lead
        self._callbacks = callbacks
        self._forget = forget
        self._lock = threading.Lock()
        self._received = ReceivedPieces(seal.extent, regions_sent(seal))
        self._writers: set[Connection] = set()
        self._failure: str | None = None
        self._settled = False
        self._chunks_begun = 0
        self._chunks_begun_before = -1

    def start(self) -> None:
        """Tells the sender to begin. A snapshot without bytes is complete at once."""
        self._lead.send(Kind.ACCEPT, [])
        self._settle_if_over()

    def receive(self, connection: Connection, chunk: Chunk) -> None:
        """Reads the bytes of one chunk from a stream directly into the slot."""
        self._enter(connection, chunk)
        try:
            view = self._regions[chunk.region][chunk.offset : chunk.offset + chunk.size]
            digests = connection.receive_pieces(view)
        except BaseException as error:
            self._leave(connection, failure=str(error))
            raise
        self._leave(connection, chunk=chunk, digests=digests)

    def fail(self, reason: str) -> None:
        """Gives up the transfer and cuts its writers. `dropped` is called when the last of them has ended."""
        with self._lock:
            self._failure = self._failure or reason
            writers = tuple(self._writers)
        for connection in writers:
            connection.cut(reason)
        self._settle_if_over()

    def fail_if_stalled(self) -> None:
        """Fails the transfer if no stream has begun a chunk since the last call. The lead calls it once per deadline of
        silence."""
        with self._lock:
            stalled = not self._writers and self._chunks_begun == self._chunks_begun_before
            self._chunks_begun_before = self._chunks_begun
        if stalled:
            self.fail(f"{self._lead.peer}: no data")

    def _enter(self, connection: Connection, chunk: Chunk) -> None:
        with self._lock:
            if self._failure is not None or self._settled:
                raise TransferError(f"{connection.peer}: transfer is over: {self._failure or 'complete'}")
            self._received.claim(chunk)
            self._writers.add(connection)
            self._chunks_begun += 1

    def _leave(
        self,
        connection: Connection,
        *,
        chunk: Chunk | None = None,
        digests: list[int] | None = None,
        failure: str | None = None,
    ) -> None:
        with self._lock:
            self._writers.discard(connection)
            self._failure = self._failure or failure
            if chunk is not None and digests is not None:
                self._received.arrived(chunk, digests)
        self._settle_if_over()

    def _settle_if_over(self) -> None:
        with self._lock:
            over = self._failure is not None or self._received.complete
            if self._settled or self._writers or not over:
                return
            self._settled = True
            reason = self._failure or self._received.mismatch(self.seal.digest)
        self._forget()
        if reason is None:
            self._store()
        else:
            self._drop(reason)

    def _store(self) -> None:
        write_seal(self._view, self.seal)
        try:
            self._callbacks.stored(self.seal)
        except BaseException as error:
            clear_seal(self._view)
            self._drop(f"the holder could not record it: {error}")
            raise
        self._answer(Kind.STORED, "")

    def _drop(self, reason: str) -> None:
        self._callbacks.dropped(self.seal, reason)
        self._answer(Kind.REFUSED, reason)

    def _answer(self, kind: Kind, reason: str) -> None:
        # The sender may be gone. If it only missed the answer, it finds the copy when it asks again.
        with contextlib.suppress(TransferError):
            self._lead.send(kind, [reason])
