"""Every message survives the way through bytes; bytes that are none are refused."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from typing import Any

import msgpack
import pytest

from deadpool.errors import WireError
from deadpool.protocol import messages
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Ask, Copy, Fence, Inventory
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal
from deadpool.wire.codec import decode, encode

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

NUMBERS = st.integers(min_value=0, max_value=2**63)
WORDS = st.text(max_size=20)
FREE_FORM = st.dictionaries(WORDS, st.none() | st.booleans() | NUMBERS | WORDS | st.floats(allow_nan=False), max_size=3)
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBERS,
    str: WORDS,
    bytes: st.binary(max_size=20),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    type(None): st.none(),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Anything that a field of this type may hold."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in LEAVES:
        return LEAVES[kind]
    if dataclasses.is_dataclass(kind) or kind in messages.ALL:
        return records_of(kind)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values_of(each) for each in arguments])
    if origin is Sequence or (origin is tuple and arguments[-1] is Ellipsis):
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(each) for each in arguments))
    assert origin is dict, kind
    return FREE_FORM


def records_of(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    fields = {field.name: values_of(hints[field.name]) for field in dataclasses.fields(cls)}
    return st.builds(cls, **fields)


@pytest.mark.parametrize("cls", messages.ALL, ids=lambda cls: cls.__name__)
def test_every_message_comes_back_equal(cls):
    @settings(max_examples=10, deadline=None, database=None)
    @given(records_of(cls))
    def check(message: Any) -> None:
        assert decode(encode(message)) == message

    check()


def test_every_message_class_may_travel():
    classes = {cls for cls in vars(messages).values() if dataclasses.is_dataclass(cls)}
    assert classes - set(messages.ALL) == set()


@settings(max_examples=200, deadline=None, database=None)
@given(st.binary(max_size=64))
def test_garbage_is_a_wire_error_or_a_plain_value(data):
    try:
        decode(data)
    except WireError:
        return


@settings(max_examples=50, deadline=None, database=None)
@given(st.integers(min_value=0, max_value=40))
def test_a_message_cut_short_is_refused(length):
    whole = encode(Fence(generation=Generation(1, 2), cause="fault-1"))
    with pytest.raises(WireError):
        decode(whole[: min(length, len(whole) - 1)])


def record(*body: Any) -> bytes:
    """As it travels: its name, then its fields."""
    return bytes(msgpack.packb([*body[:1], body[1:]]))


@pytest.mark.parametrize(
    "data",
    [
        record("Popen", "true"),
        record("Go", 1),
        record("Go", 1, 2, 3),
        record(),
        bytes(msgpack.packb(msgpack.ExtType(7, b"")))
    ],
)  # fmt: skip
def test_what_is_no_message_of_ours_is_refused(data):
    with pytest.raises(WireError):
        decode(data)


def test_only_messages_travel():
    with pytest.raises(WireError, match="cannot travel"):
        encode(Ask(what="status", arguments={"where": object()}))


@pytest.mark.parametrize(
    "data",
    [
        record("Go", "not a generation", "cause"),
        record("Go", None, "cause"),
        record("Go", (1, 2), 3),
        record("Heartbeat", (1, 2), ((0, "one"),), (), (), ()),
        record("Order", 1, ("Heartbeat", ((1, 2), (), (), (), ()))),
        record("Report", ("not a dict",)),
        record("FenceAck", (1, 2), ((), (((1, 1), 4), (1, 1, 1), (1, 1, 1), True, (), (0, 1), (5, 5, 5)), ()), ()),
    ],
)
def test_a_field_of_another_type_than_declared_is_refused(data):
    with pytest.raises(WireError):
        decode(data)


def test_copies_come_back_as_they_were_and_are_made_only_when_asked_for():
    copies = tuple(_copy(rank, number) for rank in range(8) for number in (4, 5))
    inventory = decode(encode(Inventory(own=copies)))
    assert len(inventory.own.batches) == 2 and len(inventory.own) == 16
    assert sorted(inventory.own, key=lambda copy: (copy.seal.rank, copy.seal.version.number)) == list(copies)


def _copy(rank: int, number: int) -> Copy:
    extent = Extent(record_bytes=8, unique_bytes=100, replica_bytes=0)
    digest = Digest(record=rank, unique=number, replica=0)
    version = Version(Generation(1, 1), number)
    seal = Seal(rank=rank, version=version, extent=extent, digest=digest, full=True)
    return Copy(seal=seal, geometry=Geometry(record_capacity=64, unique_bytes=100, replica_bytes=0))
