"""What arrives over one or more streams: who writes, whether it is complete, and how it ends.

The last writer settles it, exactly once: what arrived is stored, or dropped. It is never dropped while a stream still
writes (rule 11, one writer per slot).
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from deadpool.errors import TransferError, WireError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.seal import Seal
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Chunk, Kind
from deadpool.snapshot.transfer.transport import Window


class Arrival(ABC):
    """The sessions of all its streams share it; `lead` asked for it and gets the answer."""

    def __init__(self, *, seal: Seal, lead: Connection, forget: Callable[[], None]) -> None:
        self.seal = seal
        self._lead = lead
        self._forget = forget
        self._lock = threading.Lock()
        self._writers: set[Connection] = set()
        self._failure: str | None = None
        self._settled = False
        self._chunks_begun = 0
        self._chunks_begun_before = -1

    # --- what kinds of arrivals differ in. The first four are called under the lock.

    @abstractmethod
    def _claim(self, chunk: Chunk) -> None:
        """Reserves a chunk for one writer, or raises a WireError."""

    @abstractmethod
    def _arrived(self, chunk: Chunk, digests: list[int]) -> None: ...

    @abstractmethod
    def _is_complete(self) -> bool: ...

    @abstractmethod
    def _mismatch(self) -> str | None:
        """Says where what has arrived completely is not as it was sealed; None: it is."""

    @abstractmethod
    def _read(self, connection: Connection, chunk: Chunk) -> list[int]:
        """Reads the bytes of a chunk, and returns the digests of its pieces."""

    @abstractmethod
    def _store(self) -> None: ...

    @abstractmethod
    def _drop(self, refusal: Refusal, reason: str) -> None: ...

    def _there_already(self) -> bytes:
        """What the sender need not send, in a form that both sides know."""
        return b""

    @property
    def takes_windows(self) -> bool:
        return False

    def _take(self, connection: Connection, chunk: Chunk, window: Window) -> list[int] | None:
        """Reads a chunk through a window; None: its bytes have to be sent."""
        raise WireError(f"{connection.peer}: a window was not asked for")

    def _return(self, chunk: Chunk) -> None:
        """Takes back the claim of a chunk that could not be taken through its window. It is called under the lock."""
        raise AssertionError("no window was taken")

    # --- what they share

    def start(self) -> None:
        """Tells the sender to begin. What has no bytes is complete at once."""
        there = self._there_already()
        self._lead.send_list(Kind.ACCEPT, [int(self.takes_windows)], there)
        self._settle_if_over()

    def receive(self, connection: Connection, chunk: Chunk) -> None:
        """Reads the bytes of one chunk from a stream directly to where they belong."""
        self._enter(connection, chunk)
        try:
            digests = self._read(connection, chunk)
        except BaseException as error:
            self._leave(connection, failure=str(error))
            raise
        self._leave(connection, chunk=chunk, digests=digests)

    def take(self, connection: Connection, chunk: Chunk, window: Window) -> None:
        """Reads the bytes of one chunk from the sender's memory, or asks for them over the stream."""
        self._enter(connection, chunk)
        try:
            digests = self._take(connection, chunk, window)
            connection.send(Kind.AGAIN if digests is None else Kind.TAKEN, [])
        except BaseException as error:
            self._leave(connection, failure=str(error))
            raise
        self._leave(connection, chunk=chunk, digests=digests)

    def fail(self, reason: str) -> None:
        """Gives up the transfer and cuts its writers. It is dropped when the last of them has ended."""
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
            self._claim(chunk)
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
                self._arrived(chunk, digests)
            elif chunk is not None:
                self._return(chunk)
        self._settle_if_over()

    def _settle_if_over(self) -> None:
        with self._lock:
            over = self._failure is not None or self._is_complete()
            if self._settled or self._writers or not over:
                return
            self._settled = True
            failure, mismatch = self._failure, self._mismatch() if self._failure is None else None
        self._forget()
        if failure is not None:
            self._drop(Refusal.BROKEN_OFF, failure)
        elif mismatch is not None:
            self._drop(Refusal.DAMAGED, mismatch)
        else:
            self._store()

    # The sender may be gone. If it only missed the answer, it finds what it sent when it asks again.

    def _tell_stored(self) -> None:
        with contextlib.suppress(TransferError):
            self._lead.send(Kind.STORED, [])

    def _tell_refused(self, refusal: Refusal, reason: str) -> None:
        with contextlib.suppress(TransferError):
            self._lead.refuse(refusal, reason)
