"""Which tensor object lies under the name of each buffer, and which of them share memory: identity is state.

A script may assign buffers: `self.prev = self.cur`, or `self.last = x` with x a slice of its data. If the bytes of a
snapshot were written into whatever tensor lies under the name, they would overwrite another buffer, or the data. So a
rank that was at the boundary gets the same objects again, in the memory that they had. In another process a buffer
whose object is no longer the one it had at protect() gets memory of its own, and buffers that shared memory share it
again.

Only the main thread may use it. A boundary at which nothing was assigned costs a comparison of lists in C.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterable
from itertools import chain, compress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from deadpool.snapshot.record.tensors import is_dtensor, local_address
from deadpool.snapshot.state.buffer_layout import AssignedBuffer, Form, Seen, SharedMemory, find_shared, form_of
from deadpool.snapshot.state.cures import is_off
from deadpool.snapshot.state.objects import Key, ModuleTrees, describe

_shape = operator.attrgetter("shape")
_data_ptr: Any = Tensor.data_ptr
_dict_values = dict.values


class BufferPlace(NamedTuple):
    """An object that belongs under the name of a buffer, and the memory that it has to be moved to, if any."""

    buffer: Tensor
    memory: Tensor | None = None

    @property
    def target(self) -> Tensor:
        """Returns the tensor into which the contents are written."""
        return self.buffer if self.memory is None else self.memory


class BufferObjects:
    """Numbers the objects: those of protect() have the numbers of their names, the same in each process that runs the
    script; later ones have numbers that mean something only in the process that gave them."""

    def __init__(self, trees: ModuleTrees) -> None:
        self._trees = trees
        self._process = uuid.uuid4().hex
        self._paths: object = None
        self._dicts: list[dict[str, Tensor | None]] = []
        self._keys: list[Key] = []
        self._held: list[Tensor | None] = []  # the objects at the last boundary, in the order of the keys
        self._places: list[Any] = []
        self._is_plain: list[bool] = []
        self._seen: dict[Key, Seen] = {}
        self._memory: dict[int, Tensor] = {}  # the memory that each of them had there, by its number
        self._numbers = WeakIdKeyDictionary()
        self._objects: dict[int, TensorWeakRef] = {}
        self._count = 0
        self._part: dict[str, Any] = {}
        self._told: dict[str, Any] = self._part
        self._look()
        self._first = {key: (each.number, each.form) for key, each in self._seen.items()}
        self._first_count = self._count

    def capture(self) -> dict[str, Any]:
        """Returns what differs from protect(), {} if nothing does, and holds the objects of this boundary."""
        if not is_off("D7") and not self._is_as_held():
            self._look()
            self._part = self._describe()
        return self._part

    def take_shared(self, params: Iterable[Tensor]) -> tuple[str, ...]:
        """Returns the buffers that were assigned since protect() and share memory with one of these parameters. Call it
        after capture(); () if nothing was assigned since the last call."""
        if self._part is self._told:
            return ()
        self._told = self._part
        plain = [each for each in params if _is_plain(each)]
        storages = {each.untyped_storage().data_ptr() for each in plain} - {0}
        keys = [AssignedBuffer(*row).key for row in self._part.get("assigned", ())]
        live = {key: each for key in keys if (each := self._live(key)) is not None and _is_plain(each)}
        return tuple(describe(key) for key, each in live.items() if each.untyped_storage().data_ptr() in storages)

    def find(self, part: dict[str, Any]) -> dict[Key, BufferPlace]:
        """Returns the objects of the boundary that the part describes, where they are not what lies there now. Their
        contents are anything. Nothing is changed yet."""
        if is_off("D7"):
            return {}
        assigned = [AssignedBuffer(*row) for row in part.get("assigned", ())]
        listed = {each.key for each in assigned}
        found = {key: self._as_at_first(key) for key in self._first if key not in listed and self._has_module(key)}
        wanted = {key: each for key, each in found.items() if each is not None}
        memory = SharedMemory(part.get("shared", ()), {key: each.target for key, each in wanted.items()})
        made: dict[int, BufferPlace] = {}
        for each in assigned:
            if each.number not in made:
                made[each.number] = self._as_assigned(each, part["process"], memory)
            wanted[each.key] = made[each.number]
        return {key: each for key, each in wanted.items() if self._is_needed(key, each)}

    def place(self, found: dict[Key, BufferPlace]) -> None:
        """Puts the objects under their names, on the memory that they had at the boundary."""
        for key, each in found.items():
            if each.memory is not None:
                each.buffer.data = each.memory
            if self._has_module(key):
                self._trees.paths[key[1]][str(key[2])]._buffers[key[3]] = each.buffer

    def _look(self) -> None:
        """Looks closer at the buffers that are other objects, or lie elsewhere, than at the last boundary."""
        if self._paths is not self._trees.paths:
            self._paths = self._trees.paths
            self._owners = [(name, path) for name, paths in self._trees.paths.items() for path in paths]
            self._dicts = [module._buffers for paths in self._trees.paths.values() for module in paths.values()]
            self._keys, self._places = [], []
        keys, held = self._live_keys(), list(chain.from_iterable(map(_dict_values, self._dicts)))
        self._is_plain = [each is not None and _is_plain(each) for each in held]
        places = _places(held, self._is_plain)
        if keys != self._keys or len(places) != len(self._places) or len(held) != len(self._held):
            changed = list(range(len(keys)))
        else:
            pairs = zip(held, self._held, places, self._places, strict=True)
            changed = [at for at, (now, before, here, there) in enumerate(pairs) if now is not before or here != there]
        self._keys, self._held, self._places = keys, held, places
        self._names = list(chain.from_iterable(self._dicts))
        self._see(changed)

    def _live_keys(self) -> list[Key]:
        owners = zip(self._owners, self._dicts, strict=True)
        return [("buffer", *owner, name) for owner, buffers in owners for name in buffers]

    def _see(self, changed: list[int]) -> None:
        if len(changed) == len(self._keys):
            self._seen = {}
        for at in changed:
            key, buffer = self._keys[at], self._held[at]
            self._seen.pop(key, None)
            if buffer is not None:
                self._seen[key] = self._seen_as(buffer, self._places[at])
                if self._is_plain[at]:
                    self._memory[self._seen[key].number] = buffer.detach()
        if changed:
            numbers = {each.number for each in self._seen.values()}
            self._memory = {number: each for number, each in self._memory.items() if number in numbers}
            self._objects = {
                number: ref for number, ref in self._objects.items() if number in numbers or ref() is not None
            }

    def _seen_as(self, buffer: Tensor, place: tuple[int, Any] | None) -> Seen:
        return Seen(self._number(buffer), form_of(buffer), None if place is None else place[0], is_dtensor(buffer))

    def _is_as_held(self) -> bool:
        if self._paths is not self._trees.paths:
            return False
        live = list(chain.from_iterable(map(_dict_values, self._dicts)))
        return (
            len(live) == len(self._held)
            and all(map(operator.is_, live, self._held))
            and _places(live, self._is_plain) == self._places
            and list(chain.from_iterable(self._dicts)) == self._names
        )

    def _describe(self) -> dict[str, Any]:
        """A DTensor cannot be made anew without its mesh: it is written in place, as long as it fits."""
        first = self._first
        assigned = {
            key: each
            for key, each in self._seen.items()
            if first.get(key) != (each.number, each.form) and not each.is_dtensor
        }
        if not assigned:
            return {}
        shared, places = find_shared(self._seen, assigned.keys())
        rows = [(*key[1:], each.number, *each.form, *places.get(key, (None, 0))) for key, each in assigned.items()]
        return {"process": self._process, "assigned": rows, "shared": shared}

    def _number(self, buffer: Tensor) -> int:
        number: int | None = self._numbers.get(buffer)
        if number is None:
            number, self._count = self._count, self._count + 1
            self._numbers[buffer] = number
            self._objects[number] = TensorWeakRef(buffer)
        return number

    def _known(self, number: int, process: str) -> Tensor | None:
        """Returns the object with this number, if it is one of protect() or of this process, and still there."""
        ref = self._objects.get(number)
        return ref() if ref is not None and (number < self._first_count or process == self._process) else None

    def _as_at_first(self, key: Key) -> BufferPlace | None:
        """Returns the object of protect(), or if it is gone one of its kind in new memory."""
        number, form = self._first[key]
        live, first = self._live(key), self._known(number, "")
        if live is not None and is_dtensor(live):
            return None
        return BufferPlace(form.make()) if first is None else self._in_form(first, form)

    def _as_assigned(self, assigned: AssignedBuffer, process: str, memory: SharedMemory) -> BufferPlace:
        known = self._known(assigned.number, process)
        return BufferPlace(memory.make(assigned)) if known is None else self._in_form(known, assigned.form)

    def _in_form(self, buffer: Tensor, form: Form) -> BufferPlace:
        """The script may have moved the object to other memory since, or resized it."""
        held = self._memory.get(self._numbers.get(buffer, -1))
        if held is not None and _are_alike(form_of(held), form):
            return BufferPlace(buffer, None if _is_same_memory(buffer, held) else held)
        return BufferPlace(buffer, None if _are_alike(form_of(buffer), form) else form.make().detach())

    def _is_needed(self, key: Key, placement: BufferPlace) -> bool:
        return placement.memory is not None or self._live(key) is not placement.buffer

    def _has_module(self, key: Key) -> bool:
        return str(key[2]) in self._trees.paths.get(key[1], {})

    def _live(self, key: Key) -> Tensor | None:
        return self._trees.paths[key[1]][str(key[2])]._buffers.get(key[3]) if self._has_module(key) else None


def _is_same_memory(buffer: Tensor, held: Tensor) -> bool:
    return _address(buffer) == _address(held) and _are_alike(form_of(buffer), form_of(held))


def _are_alike(one: Form, other: Form) -> bool:
    """What is held outside of autograd requires no gradient."""
    return one._replace(requires_grad=False) == other._replace(requires_grad=False)


def _is_plain(buffer: Tensor) -> bool:
    return buffer.layout == torch.strided and not is_dtensor(buffer)


def _places(buffers: list[Tensor | None], are_plain: list[bool]) -> list[Any]:
    """Returns address and shape of each buffer that lies in plain memory, None for others."""
    plain = list(compress(buffers, are_plain))
    found = zip(map(_data_ptr, plain), map(_shape, plain), strict=True)
    return list(found) if len(plain) == len(buffers) else [next(found) if each else None for each in are_plain]


def _address(buffer: Tensor) -> int:
    return local_address(buffer) if buffer.layout == torch.strided else 0
