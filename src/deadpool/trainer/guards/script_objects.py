"""What an object of the script leads to, by the names that a reader of the script knows it by, and what tells that it
was changed in place.

Nothing is written, called or consumed here.
"""

from __future__ import annotations

import argparse
import contextvars
import functools
import gc
import operator
import threading
import types
import weakref
import zlib
from collections import ChainMap, UserDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from deadpool.trainer.guards.carried_gradients import is_of_script, is_own_class

PLAIN = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS = (list, tuple, dict, set, deque)
_MOST_ITEMS = 64  # of longer containers only the last items are compared, and the length
_LAST_ITEMS = 2
_SAMPLE_BYTES = 4096  # of an array of numpy
_WEAK_MAPPINGS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, WeakIdKeyDictionary)
_BUILTIN_ITERATORS = ("builtins", "itertools")


class DictEntries(NamedTuple):
    """How many entries a dictionary or a set has, and which objects its keys name; of a big one only how many."""

    size: int
    ids: dict[Any, int | None]

    def has_only_more_than(self, before: DictEntries) -> bool:
        return self.size > before.size and (not self.ids or before.ids.items() <= self.ids.items())


def content_of(value: Any) -> object:
    """What tells, without its parts, whether an object was changed in place."""
    if isinstance(value, Tensor):
        return 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else zlib.crc32(value.reshape(-1)[:_SAMPLE_BYTES].tobytes())
    if isinstance(value, (dict, set)):
        return DictEntries(
            size_of(value), {key: None if isinstance(each, PLAIN) else id(each) for key, each in _items(value)}
        )
    if isinstance(value, functools._lru_cache_wrapper):
        return DictEntries(value.cache_info().currsize, {})
    if isinstance(value, bytearray):
        return len(value), zlib.crc32(value[:_SAMPLE_BYTES])
    if isinstance(value, CONTAINERS):
        return size_of(value), [id(each) for _, each in _items(value) if not isinstance(each, PLAIN)]
    if isinstance(value, types.GeneratorType):
        return value.gi_frame.f_lasti if value.gi_frame is not None else None
    if _is_builtin_iterator(value):
        return repr(value) if type(value).__name__ == "count" else operator.length_hint(value, -1)
    return None


def parts_of(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What an object leads to, by the names that a reader of the script knows it by."""
    if isinstance(value, CONTAINERS):
        yield from ((f"{place}[{key!r}]", each) for key, each in _items(value))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(place, value)
    elif isinstance(value, types.MethodType):
        yield from ((place, value.__self__), (place, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((place, value.func), (f"{place}:args", value.args), (f"{place}:args", value.keywords))
    elif isinstance(value, types.GeneratorType):
        if value.gi_frame is not None and not value.gi_running and is_of_script(value.gi_code.co_filename):
            yield from ((f"{place}:{name}", each) for name, each in value.gi_frame.f_locals.items())
    elif isinstance(value, contextvars.ContextVar):
        yield place, value.get(None)
    elif isinstance(value, (threading.local, types.SimpleNamespace, argparse.Namespace)):
        yield from ((f"{place}.{name}", each) for name, each in vars(value).items())
    elif isinstance(value, _WEAK_MAPPINGS):
        yield from ((f"{place}~{index}", each) for index, each in enumerate(islice(value.values(), _MOST_ITEMS)))
    elif isinstance(value, (UserDict, ChainMap)):  # their own methods may be the script's
        yield place, vars(value).get("data" if isinstance(value, UserDict) else "maps")
    elif isinstance(value, functools._lru_cache_wrapper):
        yield place, value.__wrapped__
    elif _is_builtin_iterator(value):
        yield from ((f"{place}~{index}", each) for index, each in enumerate(gc.get_referents(value)))
    elif isinstance(value, type):
        if is_own_class(value):
            yield from ((f"{value.__name__}.{name}", each) for name, each in vars(value).items() if _is_data(each))
    elif is_own_class(type(value)):
        yield from ((f"{place}.{name}", each) for name, each in attributes_of(value).items())
        yield type(value).__name__, type(value)


def _parts_of_function(place: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if not is_of_script(function.__code__.co_filename):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{place}:{name}", cell.cell_contents
        except ValueError:  # it is empty
            continue
    yield from ((f"{place}:default~{index}", each) for index, each in enumerate(function.__defaults__ or ()))
    yield from ((f"{place}:{name}", each) for name, each in (function.__kwdefaults__ or {}).items())
    yield from ((f"{place}.{name}", each) for name, each in vars(function).items())


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Returns all items, or the last ones of a long container, because it grows there. Keys that are objects, such as
    parameters, are counted, below zero."""
    kind, size = _library_class(value), size_of(value)
    if isinstance(value, dict):
        items = list(kind.items(value)) if size <= _MOST_ITEMS else []
        return [(key if isinstance(key, (str, int)) else -1 - at, each) for at, (key, each) in enumerate(items)]
    if isinstance(value, set):
        return (
            [(each, each) for each in kind.copy(value) if isinstance(each, (str, int))] if size <= _MOST_ITEMS else []
        )
    first = 0 if size <= _MOST_ITEMS else size - _LAST_ITEMS
    try:
        return [(index, kind.__getitem__(value, index)) for index in range(first, size)]
    except IndexError:  # a thread of the script has taken something out
        return []


def size_of(container: Any) -> int:
    return int(_library_class(container).__len__(container))


def _library_class(value: Any) -> Any:
    """The class whose methods are called: those of the script's own classes may draw random numbers, or read a file."""
    return next(kind for kind in type(value).__mro__ if not is_own_class(kind))


def attributes_of(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", None) or {})
    for kind in type(value).__mro__ if is_own_class(type(value)) else ():
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _is_data(value: Any) -> bool:
    return isinstance(value, (*PLAIN, *CONTAINERS, Tensor)) or is_own_class(type(value))


def _is_builtin_iterator(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ in _BUILTIN_ITERATORS and hasattr(kind, "__next__") and kind is not types.GeneratorType


def numbers_in(value: Any, depth: int) -> Iterator[float]:
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        yield value.item()
    elif depth and isinstance(value, dict):
        yield from (each for inner in value.values() for each in numbers_in(inner, depth - 1))
    elif depth and isinstance(value, (list, tuple, deque)):
        yield from (each for inner in value for each in numbers_in(inner, depth - 1))
