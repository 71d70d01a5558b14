"""An authenticated TCP connection for a thread that can wait: connect, then whole payloads one after the other."""

from __future__ import annotations

import socket
import time

from deadpool.errors import WireError
from deadpool.protocol.identity import Address
from deadpool.wire.codec import Framer, frame
from deadpool.wire.handshake import PLAIN, Handshake, Purpose
from deadpool.wire.secret import Credentials
from deadpool.wire.tls import carrier_of_server

_CHUNK_BYTES = 1 << 18


class BlockingLink:
    """The client's end. Not for several threads at once."""

    def __init__(self, address: Address, credentials: Credentials, purpose: Purpose, *, timeout_s: float) -> None:
        self._framer, self._payloads = Framer(), list[bytes]()
        deadline = time.monotonic() + timeout_s
        self._sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            carrier = self._encrypt(credentials)
            self._shake_hands(Handshake(credentials.secret, "client", purpose, carrier), deadline)
        except (OSError, WireError):
            self._sock.close()
            raise

    def send(self, payload: bytes) -> None:
        self._sock.sendall(frame(payload))

    def receive(self, timeout_s: float | None) -> bytes:
        """The next payload; TimeoutError when none came in time, WireError when the peer is gone."""
        self._sock.settimeout(timeout_s)
        while not self._payloads:
            data = self._sock.recv(_CHUNK_BYTES)
            if not data:
                raise WireError("the peer hung up")
            self._payloads.extend(self._framer.feed(data))
        return self._payloads.pop(0)

    def close(self) -> None:
        self._sock.close()

    def _encrypt(self, credentials: Credentials) -> bytes:
        """What carries the connection from here on; for the proof."""
        if credentials.tls is None:
            return PLAIN
        encrypted = credentials.tls.client.wrap_socket(self._sock)
        self._sock = encrypted
        return carrier_of_server(encrypted)

    def _shake_hands(self, handshake: Handshake, deadline: float) -> None:
        """A client has no last words for a server of another version: it has proved its own already."""
        self._sock.sendall(handshake.opening())
        while not handshake.done:
            self._sock.sendall(handshake.feed(self._exactly(handshake.needed, deadline)))

    def _exactly(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._sock.settimeout(max(1e-3, deadline - time.monotonic()))
            chunk = self._sock.recv(count - len(data))
            if not chunk:
                raise WireError("the peer hung up in the handshake: is the job's secret the same there?")
            data += chunk
        return bytes(data)
