"""What travels of a record: its fields, in order, without their names; by the types that the record declares.

A function to plain values and one back are made for every record when this is imported. On the way back every value is
looked at: a core may trust the types of its inputs, and nonsense ends the link it came from, and nothing else.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Callable
from typing import Any

from deadpool.errors import WireError
from deadpool.protocol import messages
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Extent, Geometry
from deadpool.wire.compact import Compact
from deadpool.wire.generated import function
from deadpool.wire.sharing import Step, sharing

SHARED: frozenset[type] = frozenset({Generation, Version, Extent, Geometry})

TYPES: dict[str, type] = {cls.__name__: cls for cls in messages.ALL}
_RECORDS = frozenset(messages.ALL)
_packers: dict[type, Step] = {}
_unpackers: dict[type, Step] = {}
_COMPACT = Compact(_packers, _unpackers).steps()


def pack(record: Any) -> list[Any]:
    """Its name first: nobody knows what comes."""
    packer = _packers.get(type(record))
    if packer is None:
        raise WireError(f"a {type(record).__name__} cannot travel")
    return [type(record).__name__, packer(record)]


def unpack(value: Any) -> Any:
    if type(value) is not tuple or len(value) != 2 or type(value[0]) is not str:
        raise WireError("not a record of ours")
    cls = TYPES.get(value[0])
    if cls is None:
        raise WireError(f"{value[0]!r} is not a message of this version")
    return _unpackers[cls](value[1])


# --- to plain values -------------------------------------------------------------------------------------------------


def _packing(kind: Any) -> Step | None:
    """None: it is plain already."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _COMPACT:
        return _COMPACT[kind][0]
    if kind in _RECORDS:
        return _packer_of(kind)
    if origin in (types.UnionType, typing.Union):
        return _packing_one_of(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        each = _packing(arguments[0])
        return (lambda value: [each(item) for item in value]) if each else None
    if origin is tuple:
        steps = [_packing(argument) for argument in arguments]
        if not any(steps):
            return None
        return lambda value: [step(item) if step else item for step, item in zip(steps, value, strict=True)]
    return None


def _packing_one_of(kinds: tuple[Any, ...]) -> Step | None:
    records = [kind for kind in kinds if kind in _RECORDS]
    if not records:
        others = [step for kind in kinds if kind is not type(None) and (step := _packing(kind))]
        assert not others, f"{kinds}: nobody could tell which of them it is"
        return None
    if len(records) == 1:
        only = _packer_of(records[0])
        return lambda value: None if value is None else only(value)
    return lambda value: None if value is None else pack(value)


def _packer_of(cls: type) -> Step:
    if cls not in _packers:
        _packers[cls] = _make_packer(cls)
    return _packers[cls]


def _make_packer(cls: type) -> Step:
    """As source: one expression per record, without a loop over its fields."""
    hints = typing.get_type_hints(cls)
    steps = {field.name: _packing(hints[field.name]) for field in dataclasses.fields(cls)}
    parts = [f"_{name}(r.{name})" if step else f"r.{name}" for name, step in steps.items()]
    names = {f"_{name}": step for name, step in steps.items() if step}
    return function(f"lambda r: [{', '.join(parts)}]", names)


# --- and back --------------------------------------------------------------------------------------------------------


def _unpacking(kind: Any) -> Step:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _COMPACT:
        return _COMPACT[kind][1]
    if kind == PAIRS:
        return _unpack_pairs
    if kind is Any:
        return lambda value: value
    if kind in _RECORDS:
        return _unpacker_of(kind)
    if origin is typing.Literal:
        return _checked(lambda value: value in arguments, str(kind))
    if origin in (types.UnionType, typing.Union):
        return _unpacking_one_of(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _unpacking_each(arguments[0])
    if origin is tuple:
        return _unpacking_in_turn(arguments)
    return _instance(_classes(origin or kind))


def _unpacking_one_of(kinds: tuple[Any, ...]) -> Step:
    records = [kind for kind in kinds if kind in _RECORDS]
    optional = type(None) in kinds
    if not records:
        return _instance(tuple(each for kind in kinds for each in _classes(typing.get_origin(kind) or kind)))
    step: Step = _unpacking(records[0]) if len(records) == 1 else _one_of(tuple(records))
    return (lambda value: None if value is None else step(value)) if optional else step


def _one_of(records: tuple[type, ...]) -> Step:
    def step(value: Any) -> Any:
        record = unpack(value)
        if type(record) not in records:
            raise WireError(f"a {type(record).__name__} does not belong there")
        return record

    return step


def _unpacking_each(kind: Any) -> Step:
    classes = _classes(kind) if kind in (int, str, float, bytes, bool) else ()
    if classes:
        allowed = frozenset({*classes, *((bool,) if int in classes else ())})

        def plain(value: Any) -> Any:
            if type(value) is not tuple or not allowed.issuperset(map(type, value)):
                raise WireError(f"not a list of {kind.__name__}")
            return value

        return plain
    each = _unpacking(kind)

    def step(value: Any) -> Any:
        if type(value) is not tuple:
            raise WireError("not a list")
        return tuple([each(item) for item in value]) if value else value

    return step


def _unpack_pairs(value: Any) -> Any:
    """The steps of a node's ranks, in every heartbeat: looked at without a loop of ours."""
    if type(value) is not tuple:
        raise WireError("not a list")
    are_pairs = _TUPLE.issuperset(map(type, value)) and _TWO.issuperset(map(len, value))
    if not are_pairs or not _INT.issuperset(map(type, itertools.chain.from_iterable(value))):
        raise WireError("not pairs of numbers")
    return value


_TUPLE, _TWO, _INT = frozenset({tuple}), frozenset({2}), frozenset({int})


def _unpacking_in_turn(kinds: tuple[Any, ...]) -> Step:
    steps = [_unpacking(kind) for kind in kinds]

    def step(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(steps):
            raise WireError(f"not {len(steps)} values")
        return tuple([each(item) for each, item in zip(steps, value, strict=True)])

    return step


def _checked(check: Callable[[Any], bool], what: str) -> Step:
    def step(value: Any) -> Any:
        if not check(value):
            raise WireError(f"a {type(value).__name__} is not {what}")
        return value

    return step


def _instance(classes: tuple[type, ...]) -> Step:
    def step(value: Any) -> Any:
        if not isinstance(value, classes):
            raise WireError(f"a {type(value).__name__} is not one of {', '.join(cls.__name__ for cls in classes)}")
        return value

    return step


def _classes(kind: Any) -> tuple[type, ...]:
    """A whole number may stand where a fraction could."""
    return (float, int) if kind is float else (kind,)


def _unpacker_of(cls: type) -> Step:
    if cls not in _unpackers:
        _unpackers[cls] = _make_unpacker(cls)
    return _unpackers[cls]


def _make_unpacker(cls: type) -> Step:
    """As source, too: plain fields are looked at in place."""
    hints = typing.get_type_hints(cls)
    fields = [(field.name, hints[field.name]) for field in dataclasses.fields(cls)]
    names: dict[str, Any] = {"cls": cls, "refuse": _refuse(cls, [name for name, _ in fields])}
    guards, parts = ["type(v) is tuple", f"len(v) == {len(fields)}"], []
    for index, (name, kind) in enumerate(fields):
        if (guard := _guard(f"v[{index}]", kind)) is not None:
            guards.append(guard)
            parts.append(f"{name}=v[{index}]")
        else:
            names[f"_{name}"] = _unpacking(kind)
            parts.append(f"{name}=_{name}(v[{index}])")
    source = f"lambda v: cls({', '.join(parts)}) if {' and '.join(guards)} else refuse(v)"
    unpacker = function(source, names)
    return sharing(unpacker) if cls in SHARED else unpacker


PLAIN: dict[Any, str] = {int: "int", str: "str", bytes: "bytes", bool: "bool", float: "(float, int)"}
PAIRS = tuple[tuple[int, int], ...]


def _guard(value: str, kind: Any) -> str | None:
    """What has to be true of a plain value; None: it is not plain."""
    if kind in PLAIN:
        return f"isinstance({value}, {PLAIN[kind]})"
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union) and len(arguments) == 2 and type(None) in arguments:
        guard = _guard(value, next(each for each in arguments if each is not type(None)))
        return f"({value} is None or {guard})" if guard else None
    return None


def _refuse(cls: type, fields: list[str]) -> Step:
    def refuse(value: Any) -> Any:
        found = f"{len(value)} values" if isinstance(value, tuple) else f"a {type(value).__name__}"
        raise WireError(f"{found} are not a {cls.__name__} of this version: {', '.join(fields)}")

    return refuse


for _cls in messages.ALL:
    _packer_of(_cls)
    _unpacker_of(_cls)
