"""How two processes of one job prove to each other that they know its secret: a state machine on bytes, without I/O.

    client -> server   hello: magic, purpose, the client's nonce
    server -> client   hello: magic, purpose, the server's nonce
    client -> server   proof
    server -> client   proof

A proof is an HMAC of the secret over the role of its maker (client or server), what the connection is for, what carries
it (the server's certificate, where there is TLS) and both nonces. So a recorded proof is useless (the peer's nonce is
fresh), a reflected one is (the role differs), one made for another port is (the purpose differs), and so is one that a
man in the middle of a TLS connection passes on (the certificate differs). The server sends only when it has received a
hello, and proves only when the client has proved: a stranger learns nothing but a random number.

Each plane has its own few lines around this: asyncio, blocking sockets, and the streams of snapshots.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal

from deadpool.errors import WireError

Role = Literal["client", "server"]
Purpose = Literal["control", "data", "rendezvous"]

NONCE_BYTES = 32
PROOF_BYTES = 32
PLAIN = bytes(32)
"""What carries a connection without TLS."""

_MAGIC = b"DEADPL3"
_CONTEXT = b"deadpool handshake 2"
_PURPOSES: dict[Purpose, bytes] = {"control": b"C", "data": b"D", "rendezvous": b"R"}
HELLO_BYTES = len(_MAGIC) + 1 + NONCE_BYTES


class Handshake:
    """One side. Send what opening() gives; then, until `done`, feed exactly `needed` bytes and send what that gives.

    WireError means that the peer is not one of this job, and ends the handshake.
    """

    def __init__(self, secret: bytes, role: Role, purpose: Purpose, carrier: bytes = PLAIN) -> None:
        self._secret, self._role, self._purpose, self._carrier = secret, role, purpose, carrier
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._peer_nonce: bytes | None = None
        self.done = False

    def opening(self) -> bytes:
        return self._hello() if self._role == "client" else b""

    @property
    def needed(self) -> int:
        return HELLO_BYTES if self._peer_nonce is None else PROOF_BYTES

    def feed(self, data: bytes) -> bytes:
        assert not self.done and len(data) == self.needed
        return self._on_hello(data) if self._peer_nonce is None else self._on_proof(data)

    def _hello(self) -> bytes:
        return _MAGIC + _PURPOSES[self._purpose] + self._nonce

    def _on_hello(self, data: bytes) -> bytes:
        head, nonce = data[:-NONCE_BYTES], data[-NONCE_BYTES:]
        if head != _MAGIC + _PURPOSES[self._purpose]:
            raise WireError(f"it does not say hello as a peer for {self._purpose} does")
        if nonce == self._nonce:
            raise WireError("it sends back what it was sent")
        self._peer_nonce = nonce
        return self._proof() if self._role == "client" else self._hello()

    def _on_proof(self, data: bytes) -> bytes:
        if not hmac.compare_digest(self._due_from_peer(), data):
            raise WireError("it does not know the job's secret")
        self.done = True
        return self._proof() if self._role == "server" else b""

    def _proof(self) -> bytes:
        assert self._peer_nonce is not None
        return proof(self._secret, self._role, self._purpose, self._carrier, self._nonce, self._peer_nonce)

    def _due_from_peer(self) -> bytes:
        assert self._peer_nonce is not None
        peer: Role = "server" if self._role == "client" else "client"
        return proof(self._secret, peer, self._purpose, self._carrier, self._peer_nonce, self._nonce)


def proof(
    secret: bytes, role: Role, purpose: Purpose, carrier: bytes, makers_nonce: bytes, receivers_nonce: bytes
) -> bytes:
    """All parts but the words have fixed sizes, so no two handshakes give the same message."""
    assert len(carrier) == len(PLAIN) and len(makers_nonce) == len(receivers_nonce) == NONCE_BYTES
    words = b"\0".join((_CONTEXT, role.encode(), purpose.encode()))
    return hmac.new(secret, words + b"\0" + carrier + makers_nonce + receivers_nonce, hashlib.sha256).digest()
