"""The handshake by itself: who is believed, and what a peer without the secret can do with all that was ever said."""

from __future__ import annotations

import pytest
from handshakes import CARRIER, SECRET, Wire, client, server

from deadpool.errors import WireError
from deadpool.wire.handshake import HELLO_BYTES, NONCE_BYTES, PROOF_BYTES, VERSION_BYTES, proof


def test_each_side_believes_the_other():
    a, b = client(), server()
    said = Wire(a, b).said
    assert a.done and b.done
    assert [len(data) for data in said["client"] + said["server"]] == [HELLO_BYTES, PROOF_BYTES] * 2


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (client(secret=b"another secret of 16"), server(), "does not know the job's secret"),
        (client(purpose="data"), server(), "does not say hello as a peer for control does"),
        (client(carrier=CARRIER), server(), "does not know the job's secret"),
        (client(carrier=CARRIER), server(carrier=b"\2" * 32), "does not know the job's secret"),
    ],
    ids=["secret", "purpose", "no TLS", "man in the middle"],
)
def test_a_difference_is_noticed_before_the_server_proves_anything(a, b, reason):
    with pytest.raises(WireError, match=reason):
        Wire(a, b)
    assert not a.done and not b.done


def test_recorded_handshake_is_useless_against_a_server():
    hello, recorded = Wire(client(), server()).said["client"]
    victim = server()
    victim.feed(hello)
    with pytest.raises(WireError, match="does not know"):
        victim.feed(recorded)


def test_recorded_handshake_is_useless_against_a_client():
    hello, recorded = Wire(client(), server()).said["server"]
    victim = client()
    victim.feed(hello)
    with pytest.raises(WireError, match="does not know"):
        victim.feed(recorded)


def test_client_whose_own_words_come_back_believes_nobody():
    victim = client()
    with pytest.raises(WireError, match="sends back what it was sent"):
        victim.feed(victim.opening())
    other = client()
    mine = other.feed(server().feed(client().opening()))
    with pytest.raises(WireError, match="does not know"):
        other.feed(mine)


def test_proof_made_for_one_purpose_is_none_for_another():
    """Even if a hello could be forged to say another purpose, the proof is bound to it."""
    nonces = bytes(NONCE_BYTES), b"\1" * NONCE_BYTES
    proofs = {
        proof(SECRET, role, purpose, carrier, *nonces, version)
        for role in ("client", "server")
        for purpose in ("control", "data", "rendezvous")
        for carrier in (bytes(32), CARRIER)
        for version in (bytes(VERSION_BYTES), b"0.1.0".ljust(VERSION_BYTES, b"\0"))
    }
    assert len(proofs) == 24


def test_server_says_nothing_before_it_has_heard_a_hello():
    assert server().opening() == b""
