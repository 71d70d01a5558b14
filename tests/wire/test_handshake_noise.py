"""The handshake under noise, damage and replays put together from several recordings."""

from __future__ import annotations

import pytest
from handshakes import Wire, client, server

from deadpool.errors import WireError
from deadpool.wire.handshake import HELLO_BYTES, PROOF_BYTES

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies
bounded = hypothesis.settings(max_examples=200, deadline=None, database=None)


@bounded
@hypothesis.given(
    st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES), st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES)
)
@pytest.mark.parametrize("make", [client, server])
def test_noise_is_never_believed(make, hello, claimed):
    victim = make()
    with pytest.raises(WireError):
        victim.feed(hello)
        victim.feed(claimed)
    assert not victim.done


@bounded
@hypothesis.given(st.integers(min_value=0, max_value=8 * (HELLO_BYTES + PROOF_BYTES) - 1))
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


@bounded
@hypothesis.given(st.lists(st.sampled_from(["hello", "proof", "noise"]), min_size=2, max_size=2), st.integers(0, 3))
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
