"""The handshake by itself: who is believed, and what a stranger can do with all that was ever said on a wire."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deadpool.errors import WireError
from deadpool.wire.handshake import HELLO_BYTES, NONCE_BYTES, PROOF_BYTES, Handshake, proof

SECRET = b"the job's own secret"
CARRIER = b"\1" * 32


class Wire:
    """Carries a whole handshake and remembers what was said by whom."""

    def __init__(self, client: Handshake, server: Handshake) -> None:
        self.said: dict[str, list[bytes]] = {"client": [], "server": []}
        data = client.opening()
        speakers = [("client", server), ("server", client)]
        while data:
            name, hearer = speakers[0]
            self.said[name].append(data)
            data = hearer.feed(data)
            speakers.reverse()


def client(secret=SECRET, purpose="control", **more) -> Handshake:
    return Handshake(secret, "client", purpose, **more)


def server(secret=SECRET, purpose="control", **more) -> Handshake:
    return Handshake(secret, "server", purpose, **more)


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
    with pytest.raises(WireError, match="says what it hears"):
        victim.feed(victim.opening())
    other = client()
    mine = other.feed(server().feed(client().opening()))
    with pytest.raises(WireError, match="does not know"):
        other.feed(mine)


def test_proof_made_for_one_purpose_is_none_for_another():
    """Even if a hello could be forged to say another purpose, the proof is bound to it."""
    nonces = bytes(NONCE_BYTES), b"\1" * NONCE_BYTES
    proofs = {
        proof(SECRET, role, purpose, carrier, *nonces)
        for role in ("client", "server")
        for purpose in ("control", "data", "rendezvous")
        for carrier in (bytes(32), CARRIER)
    }
    assert len(proofs) == 12


def test_server_says_nothing_before_it_has_heard_a_hello():
    assert server().opening() == b""


@settings(max_examples=200, deadline=None, database=None)
@given(st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES), st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES))
@pytest.mark.parametrize("make", [client, server])
def test_noise_is_never_believed(make, hello, claimed):
    victim = make()
    with pytest.raises(WireError):
        victim.feed(hello)
        victim.feed(claimed)
    assert not victim.done


@settings(max_examples=200, deadline=None, database=None)
@given(st.integers(min_value=0, max_value=8 * (HELLO_BYTES + PROOF_BYTES) - 1))
def test_one_flipped_bit_anywhere_ends_it(bit):
    victim, member = server(), client()
    hello = bytearray(member.opening())
    where = bit // 8
    if where < HELLO_BYTES:
        hello[where] ^= 1 << bit % 8
    with pytest.raises(WireError):
        claimed = bytearray(member.feed(victim.feed(bytes(hello))))
        if where >= HELLO_BYTES:
            claimed[where - HELLO_BYTES] ^= 1 << bit % 8
        victim.feed(bytes(claimed))
    assert not victim.done


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(st.sampled_from(["hello", "proof", "noise"]), min_size=2, max_size=2), st.integers(0, 3))
def test_whatever_is_taken_from_older_handshakes_is_refused(parts, which):
    """A replay may be put together from several recordings, of both directions."""
    recordings = [Wire(client(), server()).said for _ in range(2)]
    record = recordings[which % 2]["client" if which < 2 else "server"]
    pieces = {"hello": record[0], "proof": record[1], "noise": bytes(HELLO_BYTES)}
    victim = server()
    with pytest.raises(WireError):
        for part in parts:
            victim.feed(pieces[part].ljust(victim.needed, b"\0")[: victim.needed])
    assert not victim.done
