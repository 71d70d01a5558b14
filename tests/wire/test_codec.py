"""Every message survives the way through bytes; bytes that are no message are refused."""

from __future__ import annotations

import datetime
import enum
import importlib
import pkgutil
import types
import typing
from typing import Any

import msgpack
import numpy as np
import pytest

from deadpool.errors import WireError
from deadpool.protocol import messages
from deadpool.protocol.identity import FreeFormMessage, Generation, Message, Value, Version
from deadpool.protocol.inventory_batches import Lives, NodeCopies
from deadpool.protocol.messages import Answer, Ask, Copy, Facts, Fence, FenceAck, Inventory, Live, Stepped
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal
from deadpool.wire.codec import decode, encode

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

NUMBERS = st.integers(min_value=0, max_value=2**63)
WORDS = st.text(max_size=20)
PLAIN = st.none() | st.booleans() | NUMBERS | WORDS | st.floats(allow_nan=False) | st.binary(max_size=4)
FREE_FORM = st.dictionaries(WORDS, PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(WORDS, PLAIN, max_size=2))
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
    if kind is RankGroup:
        ranks = st.lists(NUMBERS, min_size=2, max_size=4, unique=True).map(tuple)
        return st.builds(RankGroup, ranks=ranks, parities=st.just(1))
    if kind in (NodeCopies, Lives):
        return st.lists(structs_of(Copy if kind is NodeCopies else Live), max_size=4).map(kind.of)
    if isinstance(kind, type) and issubclass(kind, Value):
        return structs_of(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([values_of(each) for each in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(each) for each in arguments))
    assert origin is dict, kind
    return FREE_FORM


def structs_of(cls: type) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: values_of(kind) for name, kind in typing.get_type_hints(cls).items()})


@pytest.mark.parametrize("cls", messages.ALL, ids=lambda cls: cls.__name__)
def test_every_message_comes_back_equal(cls):
    @settings(max_examples=10, deadline=None, database=None)
    @given(structs_of(cls))
    def check(message: Any) -> None:
        assert decode(encode(message)) == message

    check()


def classes_in_messages() -> set[type]:
    """All that the files of the package define, whether its `__init__.py` knows of it or not."""
    names = [found.name for found in pkgutil.iter_modules(messages.__path__, f"{messages.__name__}.")]
    files = [vars(importlib.import_module(name)) for name in names]
    return {cls for file in files for cls in file.values() if isinstance(cls, type) and cls.__module__ in names}


def test_every_message_class_may_travel():
    assert {cls for cls in classes_in_messages() if issubclass(cls, Message)} == set(messages.ALL)
    assert all(issubclass(cls, Value) for cls in classes_in_messages())
    assert {cls.__name__ for cls in classes_in_messages()} <= set(messages.__all__)


def test_fields_of_any_type_are_only_in_messages_that_are_checked_for_them():
    """The check of plain values looks at free-form messages themselves, not at values inside other messages."""
    free = {cls for cls in subclasses(Value) if "Any" in str(typing.get_type_hints(cls).values())}
    assert free == {cls for cls in messages.ALL if issubclass(cls, FreeFormMessage)} != set()


def subclasses(cls: type) -> set[type]:
    direct = set(cls.__subclasses__())
    return direct.union(*(subclasses(each) for each in direct))


@settings(max_examples=200, deadline=None, database=None)
@given(st.binary(max_size=64))
def test_garbage_is_refused_or_is_a_message_that_could_have_been_sent(data):
    try:
        message = decode(data)
    except WireError:
        return
    assert type(message) in messages.ALL
    assert decode(encode(message)) == message or message != message  # NaN


@settings(max_examples=200, deadline=None, database=None)
@given(st.sampled_from(messages.ALL), st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=6), max_leaves=8))
def test_a_known_name_before_any_values_is_refused_or_is_that_message(cls, fields):
    try:
        message = decode(msgpack.packb([cls.__name__, *(fields if isinstance(fields, list) else [fields])]))
    except WireError:
        return
    assert type(message) is cls and decode(encode(message)) == message


@settings(max_examples=50, deadline=None, database=None)
@given(st.integers(min_value=0, max_value=40))
def test_a_message_cut_short_is_refused(length):
    whole = encode(Fence(generation=Generation(1, 2), cause="fault-1"))
    with pytest.raises(WireError):
        decode(whole[: min(length, len(whole) - 1)])


def record(*body: Any) -> bytes:
    """As it travels: its name, then its fields."""
    return bytes(msgpack.packb(body))


@pytest.mark.parametrize(
    "data",
    [
        record("Popen", "true"),
        record("Go", 1),
        record("Go", (1, 2)),
        record("Go", (1, 2), "cause", 3),
        record("Go", (1, 2), "cause") + b"\0",
        record("Generation", 1, 2),
        record("Message"),
        record("FreeFormMessage"),
        record(),
        bytes(msgpack.packb({"Go": 1})),
        bytes(msgpack.packb(msgpack.ExtType(7, b""))),
        bytes(msgpack.packb(msgpack.Timestamp(1))),
    ],
)
def test_what_is_no_message_of_ours_is_refused(data):
    with pytest.raises(WireError):
        decode(data)


@pytest.mark.parametrize("value", [object(), {1, 2}, datetime.datetime.now(datetime.UTC), Generation(1, 2), 1j])
def test_only_messages_of_plain_values_travel(value):
    with pytest.raises(WireError, match="cannot travel"):
        encode(value)
    with pytest.raises(WireError, match="cannot travel"):
        encode(Ask(what="status", arguments={"where": [value]}))


class Number(enum.IntEnum):
    ONE = 1


class Word(str):
    __slots__ = ()


def test_subclasses_of_plain_types_travel_as_those():
    facts = decode(encode(Facts(facts={"a": np.float64(0.5), "b": Number.ONE, "c": Word("w"), "d": (1, 2)}))).facts
    assert facts == {"a": 0.5, "b": 1, "c": "w", "d": [1, 2]}
    assert [type(value) for value in facts.values()] == [float, int, str, list]
    stepped = Stepped(generation=Generation(1, 1), number=3, step_s=np.float64(0.5))
    assert decode(encode(stepped)) == stepped


def test_extensions_in_free_form_fields_are_refused():
    for value in (msgpack.ExtType(3, b"x"), msgpack.Timestamp(1), msgpack.Timestamp(2**33, 5)):
        with pytest.raises(WireError):
            decode(record("Answer", {"a": [value]}, None))
    assert decode(record("Answer", {"a": [1]}, None)) == Answer(body={"a": [1]})


COPIES = [((1, 1), 4), (1, 1, 1), (1, 1, 1), True, ()]


def fence_ack(live: Any = (), own: Any = ()) -> bytes:
    return record("FenceAck", (1, 2), ((live,), (own,), ((),)), ())


def test_a_fence_ack_as_the_cases_below_change_it_is_one():
    message = decode(fence_ack(live=[(((1, 1), 4), True, (0, 1))], own=[(COPIES, (0, 1), bytes(48))]))
    assert (len(message.inventory.live), len(message.inventory.own)) == (2, 2)


@pytest.mark.parametrize(
    "data",
    [
        record("Go", "not a generation", "cause"),
        record("Go", None, "cause"),
        record("Go", (1, 2), 3),
        record("Go", (1, True), "cause"),
        record("Go", (1, 2.0), "cause"),
        record("Go", (1, "2"), "cause"),
        record("Go", {"term": 1, "n": 2}, "cause"),
        record("Heartbeat", (1, 2), ((0, "one"),), (), (), ()),
        record("Heartbeat", (1, 2), ((0, 1, 2),), (), (), ()),
        record("Order", 1, ("Heartbeat", (1, 2), (), (), (), ())),
        record("Report", ("not a dict",)),
        record("Report", ({1: "not a word"},)),
        fence_ack(own=[(COPIES, (0, 1), (5, 5, 5))]),
        fence_ack(own=[(COPIES, (0, 1), bytes(24))]),
        fence_ack(own=[(COPIES, (0,), "A" * 32)]),
        fence_ack(own=[(COPIES, (0, "1"), bytes(48))]),
        fence_ack(own=[(COPIES[:4], (0, 1), bytes(48))]),
        fence_ack(live=[(((1, 1), 4), True, ())]),
        fence_ack(live=[(((1, 1), 4), 1, (0,))]),
    ],
)
def test_a_field_of_another_type_than_declared_is_refused(data):
    with pytest.raises(WireError):
        decode(data)


def test_copies_come_back_as_they_were_and_are_made_only_when_asked_for():
    copies = tuple(_copy(rank, number) for rank in range(8) for number in (4, 5))
    message = FenceAck(generation=Generation(1, 2), inventory=Inventory(own=NodeCopies.of(copies)))
    own = decode(encode(message)).inventory.own
    assert len(own.batches) == 2 and len(own) == 16
    assert list(own) == list(copies)
    assert [batch.copy(3) for batch in own.batches] == [_copy(3, 4), _copy(3, 5)]


def _copy(rank: int, number: int) -> Copy:
    extent = Extent(record_bytes=8, unique_bytes=100, replica_bytes=0)
    digest = Digest(record=rank, unique=number, replica=0)
    version = Version(Generation(1, 1), number)
    seal = Seal(rank=rank, version=version, extent=extent, digest=digest, full=True)
    return Copy(seal=seal, geometry=Geometry(record_capacity=64, unique_bytes=100, replica_bytes=0))
