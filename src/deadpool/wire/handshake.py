"""How two processes of one job prove to each other that they know its secret: a state machine on bytes, without I/O.

    client -> server   hello: magic, purpose, the client's nonce
    server -> client   hello: magic, purpose, the server's nonce
    client -> server   proof, the client's version of DeadPool
    server -> client   proof, the server's version of DeadPool

A proof is an HMAC of the secret over the role of its maker (client or server), what the connection is for, what carries
it (the server's certificate, where there is TLS), both nonces and the version. So a recorded proof is useless (the
peer's nonce is fresh), a reflected one is (the role differs), one made for another port is (the purpose differs), and
so is one that a man in the middle of a TLS connection passes on (the certificate differs). The server sends only when
it has received a hello, and proves only when the client has: whoever cannot prove it learns but a random number.

Peers of different versions refuse each other, and both say which versions these are: messages differ between versions
in ways that no reader would notice. A version that knows nothing of this says hello with an older number.

Each plane has its own few lines around this: asyncio, blocking sockets, and the streams of snapshots.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal

from deadpool import __version__
from deadpool.errors import VersionMismatch, WireError, WrongSecret

Role = Literal["client", "server"]
Purpose = Literal["control", "data", "rendezvous", "doctor"]

NONCE_BYTES = 32
VERSION_BYTES = 64
PROOF_BYTES = hashlib.sha256().digest_size + VERSION_BYTES
PLAIN = bytes(32)
"""What carries a connection without TLS."""

_FAMILY = b"DEADPL"
_MAGIC = _FAMILY + b"4"
OLD_MAGIC = _FAMILY + b"3"
"""The magic of versions that do not tell their version."""
_CONTEXT = b"deadpool handshake 3"
_PURPOSES: dict[Purpose, bytes] = {"control": b"C", "data": b"D", "rendezvous": b"R", "doctor": b"E"}
HELLO_BYTES = len(_MAGIC) + 1 + NONCE_BYTES


class Handshake:
    """One side. Send what opening() gives; then, until `done`, feed exactly `needed` bytes and send what that gives.

    WireError means that the peer is not one of this job, and ends the handshake. So does VersionMismatch, whose
    `last_words` the peer still has to be sent, so that it can say the same.
    """

    def __init__(
        self, secret: bytes, role: Role, purpose: Purpose, carrier: bytes = PLAIN, *, version: str = __version__
    ) -> None:
        self._secret, self._role, self._purpose, self._carrier = secret, role, purpose, carrier
        self._version = version
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
            self._refuse_hello(head)
        if nonce == self._nonce:
            raise WireError("it sends back what it was sent")
        self._peer_nonce = nonce
        return self._proof() if self._role == "client" else self._hello()

    def _refuse_hello(self, head: bytes) -> None:
        ours = _PURPOSES[self._purpose]
        if head.startswith(_FAMILY) and head.endswith(ours) and head[: len(_MAGIC)] != _MAGIC:
            kind = "an older" if head[: len(_MAGIC)] < _MAGIC else "a newer"
            words = self._hello() if self._role == "server" else b""
            raise VersionMismatch(differ(f"{kind} DeadPool whose version it cannot tell", self._version), words)
        raise WireError(f"it does not say hello as a peer for {self._purpose} does")

    def _on_proof(self, data: bytes) -> bytes:
        claimed, version = data[:-VERSION_BYTES], data[-VERSION_BYTES:]
        if not hmac.compare_digest(self._due_from_peer(version), claimed):
            raise WrongSecret("it does not know the job's secret")
        answer = self._proof() if self._role == "server" else b""
        if version != _padded(self._version):
            theirs = version.rstrip(b"\0").decode(errors="replace")
            raise VersionMismatch(differ(f"DeadPool {theirs}", self._version), answer)
        self.done = True
        return answer

    def _proof(self) -> bytes:
        assert self._peer_nonce is not None
        version = _padded(self._version)
        nonces = self._nonce, self._peer_nonce
        return proof(self._secret, self._role, self._purpose, self._carrier, *nonces, version) + version

    def _due_from_peer(self, version: bytes) -> bytes:
        assert self._peer_nonce is not None
        peer: Role = "server" if self._role == "client" else "client"
        return proof(self._secret, peer, self._purpose, self._carrier, self._peer_nonce, self._nonce, version)


def proof(
    secret: bytes,
    role: Role,
    purpose: Purpose,
    carrier: bytes,
    makers_nonce: bytes,
    receivers_nonce: bytes,
    version: bytes,
) -> bytes:
    """All parts but the words have fixed sizes, so no two handshakes give the same message."""
    assert len(carrier) == len(PLAIN) and len(makers_nonce) == len(receivers_nonce) == NONCE_BYTES
    assert len(version) == VERSION_BYTES
    words = b"\0".join((_CONTEXT, role.encode(), purpose.encode()))
    whole = words + b"\0" + carrier + makers_nonce + receivers_nonce + version
    return hmac.new(secret, whole, hashlib.sha256).digest()


def differ(theirs: str, ours: str = __version__) -> str:
    """The sentence for both sides."""
    return f"it runs {theirs}, and this process runs DeadPool {ours}"


def old_hello(purpose: Purpose) -> bytes:
    """What a version that does not tell its version says first."""
    return OLD_MAGIC + _PURPOSES[purpose] + secrets.token_bytes(NONCE_BYTES)


def is_old_hello(data: bytes, purpose: Purpose) -> bool:
    return data.startswith(OLD_MAGIC + _PURPOSES[purpose])


def _padded(version: str) -> bytes:
    return version.encode()[:VERSION_BYTES].ljust(VERSION_BYTES, b"\0")
