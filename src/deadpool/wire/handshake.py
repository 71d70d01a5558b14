"""How two processes of one job prove to each other that they know its secret: pure functions on bytes.

Both sides send a fresh nonce, then each proves the secret by an HMAC over its role and both nonces. The role keeps a
proof from being reflected to its maker, the peer's nonce keeps an old one from being played again. The client proves
first, so that a stranger at a server's port learns nothing but a random number.

Used by the control plane (asyncio) and the data plane (blocking sockets), each with its own exchange around it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal

NONCE_BYTES = 32
PROOF_BYTES = 32

Role = Literal["client", "server"]

_CONTEXT = b"deadpool handshake 1"


def make_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def peer_of(role: Role) -> Role:
    return "server" if role == "client" else "client"


def proof(secret: bytes, role: Role, own_nonce: bytes, peer_nonce: bytes) -> bytes:
    """What a process in `role` sends to show that it knows the secret."""
    if len(own_nonce) != NONCE_BYTES or len(peer_nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
    message = b"\0".join((_CONTEXT, role.encode(), own_nonce + peer_nonce))
    return hmac.new(secret, message, hashlib.sha256).digest()


def check(secret: bytes, role: Role, own_nonce: bytes, peer_nonce: bytes, claimed: bytes) -> bool:
    """Whether `claimed` proves the peer of a process in `role`. Takes the same time whatever is wrong with it."""
    return hmac.compare_digest(proof(secret, peer_of(role), peer_nonce, own_nonce), claimed)
