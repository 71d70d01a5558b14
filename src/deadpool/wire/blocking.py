"""An authenticated TCP connection for a thread that can wait: connect, then whole payloads one after the other."""

from __future__ import annotations

import socket

from deadpool.errors import WireError
from deadpool.protocol.topology import Address
from deadpool.wire.framing import Framer, frame
from deadpool.wire.handshake import NONCE_BYTES, PROOF_BYTES, check, make_nonce, proof


class BlockingLink:
    """The client's end. Not for several threads at once."""

    def __init__(self, address: Address, secret: bytes, *, timeout_s: float) -> None:
        self._framer, self._payloads = Framer(), list[bytes]()
        self._sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._authenticate(secret)
        except (OSError, WireError):
            self._sock.close()
            raise

    def send(self, payload: bytes) -> None:
        self._sock.sendall(frame(payload))

    def receive(self, timeout_s: float | None) -> bytes:
        """The next payload; TimeoutError when none came in time, WireError when the peer is gone."""
        self._sock.settimeout(timeout_s)
        while not self._payloads:
            data = self._sock.recv(1 << 18)
            if not data:
                raise WireError("the peer hung up")
            self._payloads.extend(self._framer.feed(data))
        return self._payloads.pop(0)

    def close(self) -> None:
        self._sock.close()

    def _authenticate(self, secret: bytes) -> None:
        nonce = make_nonce()
        self._sock.sendall(nonce)
        peer_nonce = self._exactly(NONCE_BYTES)
        self._sock.sendall(proof(secret, "client", nonce, peer_nonce))
        if not check(secret, "client", nonce, peer_nonce, self._exactly(PROOF_BYTES)):
            raise WireError("the peer does not know the job's secret")

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = self._sock.recv(count - len(data))
            if not chunk:
                raise WireError("the peer hung up in the handshake: is the job's secret the same there?")
            data += chunk
        return bytes(data)
