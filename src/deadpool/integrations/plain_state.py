"""The attributes of an object that hold plain data: counters, flags, lists of figures."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

_LEAVES = (bool, int, float, str, bytes, type(None))


def is_plain(value: object, depth: int = 6) -> bool:
    if isinstance(value, _LEAVES):
        return type(value) in _LEAVES
    if depth == 0:
        return False
    if type(value) in (dict, defaultdict):
        assert isinstance(value, dict)
        return all(type(key) in _LEAVES and is_plain(each, depth - 1) for key, each in value.items())
    if type(value) in (list, tuple, deque):
        assert isinstance(value, list | tuple | deque)
        return all(is_plain(each, depth - 1) for each in value)
    return False


def plain_attributes(owner: object) -> dict[str, Any]:
    attributes = vars(owner)
    return {"names": list(attributes), "values": {name: each for name, each in attributes.items() if is_plain(each)}}


def set_plain_attributes(owner: object, state: dict[str, Any]) -> None:
    """Containers keep their identity, because others may hold them too. What did not exist then is removed: a counter
    that began as an attribute of the class is that again."""
    for name in vars(owner).keys() - set(state["names"]):
        delattr(owner, name)
    for name, value in state["values"].items():
        _set(owner, name, value)


def _set(owner: object, name: str, value: Any) -> None:
    held = getattr(owner, name, None)
    if isinstance(held, dict) and isinstance(value, dict):
        _refill(held, value)
    elif isinstance(held, list) and isinstance(value, list):
        held[:] = value
    else:
        setattr(owner, name, value)


def _refill(held: dict[Any, Any], value: dict[Any, Any]) -> None:
    for key in [key for key in held if key not in value]:
        del held[key]
    for key, each in value.items():
        if isinstance(held.get(key), dict) and isinstance(each, dict):
            _refill(held[key], each)
        else:
            held[key] = each
