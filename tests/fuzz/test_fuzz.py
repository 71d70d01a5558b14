"""A bounded part of the fuzzing, in every run of the suite."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from targets import SEEDS, TARGETS

from deadpool.errors import WireError
from deadpool.wire.codec import decode

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

EXAMPLES = 150
bounded = hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None)

PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
EXTENSIONS = st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=40))
NESTED = st.recursive(
    PLAIN | EXTENSIONS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name):
    @bounded
    @hypothesis.given(st.binary(max_size=300))
    def check(data: bytes) -> None:
        TARGETS[name](data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_words_of_a_member(name):
    """Cut, repeated, with bytes changed: closer to what is read than noise is."""

    @bounded
    @hypothesis.given(st.sampled_from(SEEDS[name]), st.lists(st.tuples(st.integers(0), st.binary(max_size=4))))
    def check(seed: bytes, changes: list[tuple[int, bytes]]) -> None:
        data = bytearray(seed * 2)
        for where, new in changes:
            start = where % (len(data) + 1)
            data[start : start + 2] = new
        TARGETS[name](bytes(data))

    check()


@pytest.mark.parametrize("name", ["codec", "rendezvous"])
def test_any_value_that_can_be_packed(name):
    @bounded
    @hypothesis.given(NESTED)
    def check(value: object) -> None:
        TARGETS[name](msgpack.packb(value))

    check()


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000,
        b"\x81\x01" * 50_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ],
    ids=["deep lists", "deep maps", "long list", "long bytes", "long map"],
)
def test_sizes_that_are_only_claimed_are_refused(data):
    with pytest.raises(WireError):
        decode(data)


def test_extensions_in_extensions_are_refused():
    """They once ended the process: C calls Python calls C, until the stack is full."""
    data = b"\xc0"
    for _ in range(2000):
        data = msgpack.packb(msgpack.ExtType(1, data))
    with pytest.raises(WireError):
        decode(data)


def test_room_is_not_taken_for_lists_that_are_only_claimed():
    """Each level claims as many items as the frame has bytes."""
    claim = (1 << 20).to_bytes(4, "big")
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode((b"\xdd" + claim) * 500 + bytes(1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
