"""Moves the bytes of a connection: over the socket itself, or through TLS.

Each call is like a system call on a blocking socket with a timeout: it moves some bytes and returns how many, or raises
BlockingIOError if the timeout passed. Then the same call must be repeated with the same bytes. One thread may receive
while another sends.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from typing import Protocol, cast

_CHUNK_BYTES = 1 << 18


class ByteStream(Protocol):
    def send(self, data: bytes, more: bool) -> int: ...
    def send_file(self, fd: int, offset: int, size: int) -> int: ...
    def receive_into(self, view: memoryview) -> int: ...


class PlainStream:
    """Sends pages of a memfd without a copy, and receives a piece with one wake-up."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, data: bytes, more: bool) -> int:
        return self._sock.send(data, socket.MSG_MORE if more else 0)

    def send_file(self, fd: int, offset: int, size: int) -> int:
        return os.sendfile(self._sock.fileno(), fd, offset, size)

    def receive_into(self, view: memoryview) -> int:
        # MSG_WAITALL waits for all bytes in the kernel: one wake-up per piece instead of one per TCP segment.
        return self._sock.recv_into(view, len(view), socket.MSG_WAITALL)


class TlsStream:
    """Encrypts in this process, without sendfile; docs/security.md says what that costs.

    OpenSSL works in memory, under a lock, and the socket is used outside of the lock: an SSL connection must not be
    read by one thread while another writes, but a wait in one direction must not delay the other.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.connection = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._lock = threading.Lock()  # guards the three above
        self._unsent = memoryview(b"")
        self._chunk_bytes = 0
        self._clear = bytearray(_CHUNK_BYTES)

    def shake_hands(self) -> bool:
        """Does one round of TLS's own handshake and returns whether it is complete. Nothing else may run before."""
        done = True
        try:
            self.connection.do_handshake()
        except ssl.SSLWantReadError:
            done = False
        self._collect()
        self._flush()
        if not done:
            self._take_in()
        return done

    def send(self, data: bytes | memoryview, more: bool) -> int:
        if not self._unsent:
            with self._lock:
                self._chunk_bytes = self.connection.write(memoryview(data)[:_CHUNK_BYTES])
                self._collect()
        self._flush()
        return self._chunk_bytes

    def send_file(self, fd: int, offset: int, size: int) -> int:
        if self._unsent:
            return self.send(b"", more=False)
        clear = memoryview(self._clear)[: min(size, _CHUNK_BYTES)]
        count = os.preadv(fd, [clear], offset)
        return self.send(clear[:count], more=False) if count else 0

    def receive_into(self, view: memoryview) -> int:
        """Waits for the first bytes, then returns everything that has arrived."""
        while True:
            with self._lock:
                done = self._decrypt_into(view)
            if done or self._take_in() == 0:
                return done

    def _decrypt_into(self, view: memoryview) -> int:
        done = 0
        try:
            while done < len(view):
                done += cast(int, self.connection.read(len(view) - done, view[done:]))  # type: ignore[arg-type]
        except ssl.SSLWantReadError:
            pass
        return done

    def _take_in(self) -> int:
        data = self._sock.recv(_CHUNK_BYTES)
        with self._lock:
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()
        return len(data)

    def _collect(self) -> None:
        self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())

    def _flush(self) -> None:
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
