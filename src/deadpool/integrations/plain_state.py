"""The attributes of an object that hold data and nothing else: counters, flags, figures, small arrays."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch

_LEAVES = (bool, int, float, str, bytes, type(None))
_DICTS = (dict, defaultdict, OrderedDict, Counter)
_DEPTH = 8


def is_plain(value: object, depth: int = _DEPTH) -> bool:
    if type(value) in _LEAVES or isinstance(value, np.bool_ | np.number):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc"
    if type(value) is torch.Tensor:
        return value.device.type == "cpu" and not value.requires_grad
    if depth == 0:
        return False
    if isinstance(value, dict):
        items = value.items()
        return type(value) in _DICTS and all(type(k) in _LEAVES and is_plain(each, depth - 1) for k, each in items)
    if isinstance(value, list | tuple | deque | set):
        return type(value) in (list, tuple, deque, set) and all(is_plain(each, depth - 1) for each in value)
    return False


def plain_attributes(owner: object, *, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    found = {name: each for name, each in vars(owner).items() if name not in but and is_plain(each)}
    return {"names": list(vars(owner)), "values": {name: _portable(each) for name, each in found.items()}}


def _portable(value: Any) -> Any:
    """A default factory may be a function, which cannot be stored; the container that is there has it already."""
    if isinstance(value, defaultdict):
        return {key: _portable(each) for key, each in value.items()}
    if type(value) is dict:
        return {key: _portable(each) for key, each in value.items()}
    return value


def set_plain_attributes(owner: object, state: dict[str, Any]) -> None:
    """Containers keep their identity, because others may hold them too. Plain data that did not exist then is removed:
    a counter that began as an attribute of the class is that again."""
    for name in vars(owner).keys() - set(state["names"]):
        if is_plain(vars(owner)[name]):
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
    """Fills a dict in the order of `value`: what is made by going through a dict, such as an entry of a log, has that
    order too.
    """
    before = dict(held)
    held.clear()
    for key, each in value.items():
        if isinstance(each, dict) and key not in before and isinstance(held, defaultdict):
            before[key] = held[key]  # its factory makes what is missing
        if isinstance(each, dict) and isinstance(before.get(key), dict):
            held[key] = before[key]
            _refill(held[key], each)
        else:
            held[key] = each
