"""Whether a value is what a field was declared to hold: asked of every message that comes from a peer.

A core may then trust its inputs' types: nonsense ends the link it came from, and nothing else.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any

Check = Callable[[Any], bool]


def checks_of(record: type) -> tuple[Check, ...]:
    """One per field, in order."""
    hints = typing.get_type_hints(record)
    return tuple(check_of(hints[field.name]) for field in dataclasses.fields(record))


def check_of(kind: Any) -> Check:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: True
    if origin is typing.Literal:
        return lambda value: value in arguments
    if origin in (types.UnionType, typing.Union):
        return _any_of(arguments)
    if origin is tuple:
        return _each_is(arguments[0]) if arguments[-1] is Ellipsis else _in_turn(arguments)
    return _instance_of(_classes(kind))


def _any_of(kinds: tuple[Any, ...]) -> Check:
    if all(typing.get_origin(kind) is None for kind in kinds):
        return _instance_of(tuple(each for kind in kinds for each in _classes(kind)))
    checks = [check_of(kind) for kind in kinds]
    return lambda value: any(check(value) for check in checks)


def _each_is(kind: Any) -> Check:
    check = check_of(kind)
    return lambda value: isinstance(value, tuple) and all(map(check, value))


def _in_turn(kinds: tuple[Any, ...]) -> Check:
    checks = [check_of(kind) for kind in kinds]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=True))
    )


def _instance_of(classes: tuple[type, ...]) -> Check:
    return lambda value: isinstance(value, classes)


def _classes(kind: Any) -> tuple[type, ...]:
    """A whole number may stand where a fraction could."""
    plain = typing.get_origin(kind) or kind
    return (float, int) if plain is float else (plain,)
