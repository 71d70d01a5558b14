"""A bounded part of the fuzzing, in every run of the suite. FUZZ_EXAMPLES=5000 makes it a longer one."""

from __future__ import annotations

import os
import tracemalloc

import msgpack
import pytest
from targets import SEEDS, TARGETS

from deadpool.errors import WireError
from deadpool.wire.codec import decode

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))
bounded = hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None)

PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
EXTENSIONS = st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=40))
NESTED = st.recursive(
    PLAIN | EXTENSIONS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=12,
)


FREE_FORM = b"\x92\xa6Answer\x81\xa1a"
"""A message up to a field that may hold anything plain."""


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
@pytest.mark.parametrize("before", [b"", FREE_FORM], ids=["at once", "free form"])
def test_sizes_that_are_only_claimed_are_refused(data, before):
    with pytest.raises(WireError):
        decode(before + data)


def test_extensions_in_extensions_are_refused():
    """They once ended the process: C calls Python calls C, until the stack is full."""
    data = b"\xc0"
    for _ in range(2000):
        data = msgpack.packb(msgpack.ExtType(1, data))
    for before in (b"", FREE_FORM):
        with pytest.raises(WireError):
            decode(before + data)


CLAIM = (1 << 20).to_bytes(4, "big")


@pytest.mark.parametrize(
    "before",
    [
        b"",
        FREE_FORM,
        FREE_FORM + b"\x81",
        b"\x92\xa6Report",
        b"\x92\xa8Trainers",
        b"\x96\xa9Heartbeat\x92\x01\x02",
        b"\x94\xa8FenceAck\x92\x01\x02\x93",
        b"\x94\xa8FenceAck\x92\x01\x02\x93\x91\x90\x91\x91\x93\x90",
    ],
    ids=["at once", "free form", "key of free form", "records", "values", "pairs", "batches", "ranks of a batch"],
)
@pytest.mark.parametrize("opening", [b"\xdd", b"\xdf", b"\xdd" + CLAIM + b"\xdf"], ids=["lists", "maps", "both"])
def test_room_is_not_taken_for_lists_that_are_only_claimed(before, opening):
    """Each level claims as many items as the frame has bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(before + (opening + CLAIM) * 500 + bytes(1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
