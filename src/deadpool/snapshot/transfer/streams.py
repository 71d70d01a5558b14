"""What moves a connection's bytes: the socket itself, or TLS on top of it.

Each call is like a system call on a blocking socket with a timeout: it moves some bytes and says how many, or raises
BlockingIOError where the timeout passed, after which the same call is to be made again with the same bytes. One thread
may receive while another sends.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from typing import Protocol, cast

_PORTION_BYTES = 1 << 18


class Stream(Protocol):
    def send(self, data: bytes, more: bool) -> int: ...
    def send_file(self, fd: int, offset: int, size: int) -> int: ...
    def receive_into(self, view: memoryview) -> int: ...


class PlainStream:
    """Pages of a memfd go out without being copied, a piece comes in with one wake-up."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, data: bytes, more: bool) -> int:
        return self._sock.send(data, socket.MSG_MORE if more else 0)

    def send_file(self, fd: int, offset: int, size: int) -> int:
        return os.sendfile(self._sock.fileno(), fd, offset, size)

    def receive_into(self, view: memoryview) -> int:
        # Waiting for all of it in the kernel: one wake-up per piece instead of one per segment.
        return self._sock.recv_into(view, len(view), socket.MSG_WAITALL)


class TlsStream:
    """Encrypts in this process, without sendfile: docs/security.md says what that costs.

    OpenSSL works in memory, under a lock; the socket is used outside of it: its connections are not safe to be read
    by one thread while another writes, and a wait for one direction must not hold up the other.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.connection = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._lock = threading.Lock()  # of the three above
        self._unsent = memoryview(b"")
        self._portion_bytes = 0
        self._clear = bytearray(_PORTION_BYTES)

    def shake_hands(self) -> bool:
        """One round of TLS's own handshake; False: not done yet. Before anything else, in one thread."""
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
                self._portion_bytes = self.connection.write(memoryview(data)[:_PORTION_BYTES])
                self._collect()
        self._flush()
        return self._portion_bytes

    def send_file(self, fd: int, offset: int, size: int) -> int:
        if self._unsent:
            return self.send(b"", more=False)
        clear = memoryview(self._clear)[: min(size, _PORTION_BYTES)]
        count = os.preadv(fd, [clear], offset)
        return self.send(clear[:count], more=False) if count else 0

    def receive_into(self, view: memoryview) -> int:
        """Everything that is here, once something is."""
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
        data = self._sock.recv(_PORTION_BYTES)
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
