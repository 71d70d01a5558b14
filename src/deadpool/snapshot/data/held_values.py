"""What datasets, collators and samplers hold in their attributes and change while batches are made.

That is generators of their own and plain values, such as a counter or an epoch. A process that did not make the
batches lacks them. Objects are looked into three levels deep, containers of up to 100 elements included, for generators
six; and generators are found in what the code of datasets, collators and samplers reads of closures and modules. A
value is stored where it differs from the one that was there first. Lists, arrays and files are looked at where an epoch
begins (held_sequences.py).
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from deadpool.snapshot.data.generators import aside
from deadpool.snapshot.data.held_sequences import FirstContents, is_sequence
from deadpool.snapshot.record.record import decode, encode

_PLAIN = (int, float, bool, str, bytes, type(None))
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType, torch.Tensor, np.ndarray, nn.Module)
_OF_PROCESS = (torch.default_generator, np.random.mtrand._rand, random._inst)  # type: ignore[attr-defined]
_DEPTH = 6
_DEPTH_LEFT = 3
"""Deeper than that, only generators are looked for, in so many objects."""
_MOST_OBJECTS = 20_000
_LIBRARIES = ("builtins", "collections", "datasets", "functools", "numpy", "torch", "transformers", "typing")
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
        self._sequences: dict[str, Slot] = {}
        self._first_contents: dict[str, FirstContents] = {}
        self.iterators: dict[str, object] = {}
        """What cannot be put back: it goes on from where it is."""
        self._has_looked = False
        self.look()
        self._has_looked = True

    def look(self) -> None:
        """Looks for attributes that were added."""
        self._slots, self._sequences, self.iterators = {}, {}, {}
        seen = {id(each) for each in self._but()}
        for name, root in self._roots().items():
            for path, slot in _slots_of(name, _Root(root), "value", _DEPTH + 1, seen):
                value = _get(slot)
                if _is_iterator(value):
                    self.iterators[path] = value
                    continue
                if is_sequence(value) and not _is_shared_number(value):
                    self._sequences[path] = slot
                    if path not in self._first_contents:
                        self._first_contents[path] = FirstContents(path, value, is_known=not self._has_looked)
                    continue
                self._slots[path] = slot
                self._first.setdefault(path, _encoded(value) or b"")

    def read(self) -> dict[str, bytes]:
        now = {path: _encoded(_get(slot)) for path, slot in self._slots.items()}
        return {path: data for path, data in now.items() if data is not None and data != self._first[path]}

    def generators(self) -> list[object]:
        held = [_get(slot) for slot in self._slots.values()]
        return [each for each in held if isinstance(each, _GENERATORS)]

    def states_of_generators(self) -> list[bytes | None]:
        return [_encoded(each) for each in self.generators()]

    def read_all(self) -> dict[str, bytes]:
        """Returns lists, arrays and files too: what an epoch begins with."""
        return self.read_sequences() | self.read()

    def read_sequences(self) -> dict[str, bytes]:
        self.look()
        found = {path: self._first_contents[path].changed(_get(slot)) for path, slot in self._sequences.items()}
        return {path: data for path, data in found.items() if data is not None}

    def write_all(self, values: Mapping[str, bytes]) -> None:
        for path, slot in self._sequences.items():
            held = _get(slot)
            if path not in values and path in self._first:  # at first it was no sequence
                _put(slot, self._first[path])
            elif (value := self._first_contents[path].write(held, values.get(path))) is not held:
                _assign(slot, value)
        self.write(values)

    def write(self, values: Mapping[str, bytes]) -> None:
        for path, slot in self._slots.items():
            data = values.get(path, self._first[path])
            if data and _encoded(_get(slot)) != data:
                _put(slot, data)


def read_unnoted(held: HeldValues, read: Callable[[], object]) -> None:
    """Reads while everything has its first value; then the values, and all generators, are as before. An error comes
    again when the same is read in earnest."""
    noted = held.read_all()
    if not noted:
        return
    with aside():
        held.write_all({})
        with contextlib.suppress(Exception):
            read()
        held.write_all(noted)


class _Root:
    def __init__(self, value: object) -> None:
        self.value = value


def _slots_of(path: str, owner: Any, key: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Slot]]:
    value = _get((owner, key))
    if any(value is each for each in _OF_PROCESS):
        return
    if type(value) in _PLAIN or isinstance(value, _GENERATORS) or _is_shared_number(value):
        if isinstance(value, _GENERATORS) or (depth >= _DEPTH_LEFT and not isinstance(owner, _Root)):
            yield path, (owner, key)
        return
    if depth > _DEPTH_LEFT and (is_sequence(value) or _is_iterator(value)) and id(value) not in seen:
        yield path, (owner, key)
    if depth == 0 or id(value) in seen or isinstance(value, _OPAQUE):
        return
    if depth <= _DEPTH_LEFT and len(seen) > _MOST_OBJECTS:
        return
    seen.add(id(value))
    for name, generator in _generators_in_code_of(value, seen):
        if isinstance(generator, _GENERATORS) and all(generator is not each for each in _OF_PROCESS):
            yield f"{path}.{name}", (_Root(generator), "value")
    if isinstance(value, types.FunctionType):
        return
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


def _generators_in_code_of(value: object, seen: set[int]) -> Iterator[tuple[str, object]]:
    """Gives what the code of a function, or of an object's class, reads of closures, modules and the class itself."""
    if isinstance(value, types.FunctionType):
        yield from _read_by(value)
        return
    for kind in type(value).__mro__:
        if kind.__module__.partition(".")[0] in _LIBRARIES or id(kind) in seen:
            continue
        seen.add(id(kind))
        for name, each in list(vars(kind).items()):
            yield name, each
            if isinstance(each, types.FunctionType):
                yield from _read_by(each)


def _read_by(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    code, cells = function.__code__, function.__closure__ or ()
    for name, cell in zip(code.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # it is empty yet
            yield f"{code.co_name}.{name}", cell.cell_contents
    for name in code.co_names:
        yield f"{code.co_name}.{name}", function.__globals__.get(name)


def _is_iterator(value: object) -> bool:
    """Tells whether it is one of python's own, such as a generator. Others hold where they are in attributes."""
    return hasattr(type(value), "__next__") and not hasattr(value, "__dict__") and not isinstance(value, io.IOBase)


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
    kind, stored = decode(data, "a held value")
    held = _get(slot)
    if kind in ("plain", "array"):
        value = stored
    elif kind in ("order", "file") or (value := _with_state(held, kind, stored)) is held:
        return
    _assign(slot, value)


def _assign(slot: Slot, value: Any) -> None:
    owner, key = slot
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
