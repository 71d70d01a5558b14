from __future__ import annotations

import pytest

from deadpool.wire.handshake import NONCE_BYTES, check, make_nonce, proof

SECRET = b"secret"
A, B = make_nonce(), make_nonce()


def test_each_side_believes_the_other():
    assert check(SECRET, "server", B, A, proof(SECRET, "client", A, B))
    assert check(SECRET, "client", A, B, proof(SECRET, "server", B, A))


def test_reflected_replayed_or_foreign_proofs_are_not_believed():
    assert not check(SECRET, "client", A, B, proof(SECRET, "client", A, B))
    assert not check(SECRET, "client", A, A, proof(SECRET, "client", A, A))
    assert not check(SECRET, "server", make_nonce(), A, proof(SECRET, "client", A, B))
    assert not check(SECRET, "server", B, A, proof(b"other", "client", A, B))
    assert not check(SECRET, "server", B, A, b"")


def test_nonces_of_another_length_are_refused():
    assert len(A) == NONCE_BYTES
    with pytest.raises(ValueError, match="32 bytes"):
        proof(SECRET, "client", A[:-1], B)
