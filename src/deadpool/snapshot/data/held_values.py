"""What datasets, collators and samplers hold in their attributes and change while batches are made.

That is generators of their own and plain values, such as a counter or an epoch. A process that did not make the
batches lacks them. Objects are looked into three levels deep, containers of up to 100 elements included; a value is
stored where it differs from the one that was there first.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from deadpool.snapshot.record.record import decode, encode

_PLAIN = (int, float, bool, str, bytes, type(None))
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, torch.Tensor, np.ndarray, nn.Module)
_OF_PROCESS = (torch.default_generator, np.random.mtrand._rand, random._inst)  # type: ignore[attr-defined]
_DEPTH = 3
_MOST_ELEMENTS = 100
_LONGEST = 1000
_OF_STREAMS = ("_state_dict", "_starting_state_dict")
"""Where datasets of Hugging Face note how far they were read: their own state_dict() tells that."""

Slot = tuple[Any, Any]
"""The object or container, and the attribute, key or index in it."""


class HeldValues:
    """`roots` are looked up each time, because a loader may be given other objects. It looks into none of `but`."""

    def __init__(
        self, roots: Callable[[], Mapping[str, object]], *, but: Callable[[], tuple[object, ...]] = lambda: ()
    ) -> None:
        self._roots, self._but = roots, but
        self._first: dict[str, bytes] = {}
        self._slots: dict[str, Slot] = {}
        self.look()

    def look(self) -> None:
        """Looks for attributes that were added."""
        self._slots = {}
        seen = {id(each) for each in self._but()}
        for name, root in self._roots().items():
            for path, slot in _slots_of(name, _Root(root), "value", _DEPTH + 1, seen):
                self._slots[path] = slot
                self._first.setdefault(path, _encoded(_get(slot)) or b"")

    def read(self) -> dict[str, bytes]:
        now = {path: _encoded(_get(slot)) for path, slot in self._slots.items()}
        return {path: data for path, data in now.items() if data is not None and data != self._first[path]}

    def write(self, values: Mapping[str, bytes]) -> None:
        for path, slot in self._slots.items():
            data = values.get(path, self._first[path])
            if data and _encoded(_get(slot)) != data:
                _put(slot, data)


class _Root:
    def __init__(self, value: object) -> None:
        self.value = value


def _slots_of(path: str, owner: Any, key: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Slot]]:
    value = _get((owner, key))
    if any(value is each for each in _OF_PROCESS):
        return
    if type(value) in _PLAIN or isinstance(value, _GENERATORS) or _is_shared_number(value):
        if not isinstance(owner, _Root) or isinstance(value, _GENERATORS):
            yield path, (owner, key)
        return
    if depth == 0 or id(value) in seen or isinstance(value, _OPAQUE):
        return
    seen.add(id(value))
    for name, holder, inner in _parts_of(value):
        yield from _slots_of(f"{path}.{name}", holder, inner, depth - 1, seen)


def _parts_of(value: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(value, types.MethodType):
        yield "self", _Root(value.__self__), "value"
    elif isinstance(value, functools.partial):
        yield "func", _Root(value.func), "value"
        for index, each in enumerate(value.args):
            yield str(index), _Root(each), "value"
    elif isinstance(value, dict):
        # What a long one holds is taken for data.
        if len(value) <= _MOST_ELEMENTS:
            yield from ((str(key), value, key) for key in value)
    elif isinstance(value, list | tuple):
        if len(value) <= _MOST_ELEMENTS and not all(type(each) in _PLAIN for each in value):
            yield from ((str(index), value, index) for index in range(len(value)))
    else:
        but = _OF_STREAMS if type(value).__module__.startswith("datasets.") else ()
        yield from ((name, value, name) for name in list(getattr(value, "__dict__", ())) if name not in but)


def _is_shared_number(value: object) -> bool:
    """Tells whether the value is a whole number in a tensor, as the epoch of Hugging Face's datasets is, which workers
    that live on read."""
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype == torch.int64 and value.is_cpu


def _get(slot: Slot) -> Any:
    owner, key = slot
    if isinstance(owner, dict | list | tuple):
        return owner[key] if not isinstance(owner, dict) else owner.get(key)
    return vars(owner).get(key)


def _put(slot: Slot, data: bytes) -> None:
    owner, key = slot
    kind, stored = decode(data, "a held value")
    held = _get(slot)
    if kind == "plain":
        value = stored
    elif (value := _with_state(held, kind, stored)) is held:
        return
    if isinstance(owner, dict | list):
        owner[key] = value
    elif not isinstance(owner, tuple):
        owner.__dict__[key] = value


def _encoded(value: Any) -> bytes | None:
    if type(value) in _PLAIN:
        is_long = isinstance(value, str | bytes) and len(value) > _LONGEST
        return None if is_long else encode(["plain", value], "a held value")
    if _is_shared_number(value):
        return encode(["number", int(value)], "a held value")
    if isinstance(value, torch.Generator):
        return encode(["torch", value.get_state()], "a generator") if value.device.type == "cpu" else None
    if isinstance(value, random.Random):
        return encode(["python", value.getstate()], "a generator")
    if isinstance(value, np.random.Generator):
        return encode(["numpy", value.bit_generator.state], "a generator")
    if isinstance(value, np.random.RandomState):
        return encode(["numpy legacy", value.get_state(legacy=False)], "a generator")
    return None


def _with_state(held: Any, kind: str, stored: Any) -> Any:
    """Sets the state of the generator that is there; where there is none yet, a new one."""
    match kind:
        case "number":
            return held.fill_(stored) if _is_shared_number(held) else torch.tensor(stored)
        case "torch":
            torchs = held if isinstance(held, torch.Generator) else torch.Generator()
            torchs.set_state(stored)
            return torchs
        case "python":
            pythons = held if isinstance(held, random.Random) else random.Random()
            pythons.setstate(stored)
            return pythons
        case "numpy":
            kinds = np.random.Generator(getattr(np.random, stored["bit_generator"])())
            numpys = held if isinstance(held, np.random.Generator) else kinds
            numpys.bit_generator.state = stored
            return numpys
        case _:
            legacy = held if isinstance(held, np.random.RandomState) else np.random.RandomState()
            legacy.set_state(stored)
            return legacy
