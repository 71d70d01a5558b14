from __future__ import annotations

import struct

import pytest

from deadpool.errors import WireError
from deadpool.wire.codec import LIMIT_BYTES, Framer, frame

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies


@settings(deadline=None, database=None)
@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(min_value=1, max_value=7))
def test_payloads_come_out_whole_however_the_bytes_arrive(payloads, stride):
    framer = Framer()
    stream = b"".join(frame(payload) for payload in payloads)
    pieces = (stream[start : start + stride] for start in range(0, len(stream), stride))
    assert [payload for piece in pieces for payload in framer.feed(piece)] == payloads


def test_announced_size_over_the_limit_is_refused_before_the_bytes_come():
    with pytest.raises(WireError, match="announced"):
        list(Framer().feed(struct.pack("!I", LIMIT_BYTES + 1)))


def test_message_over_the_limit_is_not_sent():
    with pytest.raises(WireError, match="over the limit"):
        frame(bytes(LIMIT_BYTES + 1))
