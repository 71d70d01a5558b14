"""The form of a buffer, and which buffers lie in the same memory: enough to make them anew in another process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from operator import itemgetter, mul
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deadpool.snapshot.record.record import device_name
from deadpool.snapshot.state.objects import Key


class Form(NamedTuple):
    """How a tensor lies in memory, in values that a record can store."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    device: str
    requires_grad: bool

    def make(self) -> Tensor:
        """Returns a tensor of this form in memory of its own, with any contents. A sparse one is empty, and is replaced
        by what the record has."""
        if self.stride is None:
            return torch.empty(0, dtype=self.dtype, device=self.device)
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return made.requires_grad_(self.requires_grad)

    def make_in(self, storage: torch.UntypedStorage, start: int) -> Tensor:
        """Returns a tensor of this form in the given memory, which begins at the given byte."""
        made = torch.empty(0, dtype=self.dtype, device=self.device)
        assert self.stride is not None
        made.set_(storage, start // self.dtype.itemsize, self.shape, self.stride)  # type: ignore[call-overload]
        return made.requires_grad_(self.requires_grad)


def form_of(buffer: Tensor) -> Form:
    """A sparse tensor has no strides."""
    stride = tuple(buffer.stride()) if buffer.layout == torch.strided else None
    return Form(buffer.dtype, tuple(buffer.shape), stride, device_name(buffer.device), buffer.requires_grad)


class AssignedBuffer(NamedTuple):
    """A buffer that is not what it was at protect(): the number of its object, its form, and its place in memory that
    others share, if any."""

    keyword: str
    path: str
    name: str
    number: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    device: str
    requires_grad: bool
    memory: int | None
    start: int

    @property
    def key(self) -> Key:
        return "buffer", self.keyword, self.path, self.name

    @property
    def form(self) -> Form:
        return Form(self.dtype, self.shape, self.stride, self.device, self.requires_grad)


class Seen(NamedTuple):
    """A buffer at a boundary: the number of its object, its form, its address if it has plain memory, else None."""

    number: int
    form: Form
    address: int | None
    is_dtensor: bool


class _Range(NamedTuple):
    device: str
    start: int
    end: int
    key: Key


def find_shared(buffers: Mapping[Key, Seen], assigned: Set[Key]) -> tuple[list[Any], dict[Key, tuple[int, int]]]:
    """Returns the memories that several buffers share and at least one of which was assigned, each as (bytes, key of a
    buffer in it that was not assigned or None, where that one begins); and by key the memory and the start in it."""
    memories: list[Any] = []
    places: dict[Key, tuple[int, int]] = {}
    for group in _overlapping(buffers):
        members = [each for each in group if each.key in assigned]
        if len(group) < 2 or not members:
            continue
        base = group[0].start
        anchor = next((each for each in group if each.key not in assigned), None)
        anchored = (None, 0) if anchor is None else (list(anchor.key[1:]), anchor.start - base)
        places |= {each.key: (len(memories), each.start - base) for each in members}
        memories.append([max(each.end for each in group) - base, *anchored])
    return memories, places


def _overlapping(buffers: Mapping[Key, Seen]) -> Iterator[list[_Range]]:
    """Yields buffers in groups that lie in one range of memory, in the order of their addresses."""
    group: list[_Range] = []
    end = 0
    for each in sorted(_ranges(buffers), key=itemgetter(0, 1)):
        if group and (each.device != group[0].device or each.start >= end):
            yield group
            group, end = [], 0
        group.append(each)
        end = max(end, each.end)
    if group:
        yield group


def _ranges(buffers: Mapping[Key, Seen]) -> Iterator[_Range]:
    for key, (_, form, start, _) in buffers.items():
        if start and form.stride is not None:
            last = sum(map(mul, form.shape, form.stride)) - sum(form.stride)
            yield _Range(form.device, start, start + (last + 1) * form.dtype.itemsize, key)


class SharedMemory:
    """Makes the buffers of a boundary anew, those that shared memory in the same memory again."""

    def __init__(self, memories: Iterable[Any], known: Mapping[Key, Tensor]) -> None:
        """`known` are the buffers that are not made anew."""
        self._memories, self._known = list(memories), known
        self._made: dict[int, tuple[torch.UntypedStorage, int]] = {}

    def make(self, assigned: AssignedBuffer) -> Tensor:
        form = assigned.form
        if assigned.memory is None:
            return form.make()
        storage, base = self._storage(assigned.memory, form.device)
        start = base + assigned.start
        return form.make() if start % form.dtype.itemsize else form.make_in(storage, start)

    def _storage(self, index: int, device: str) -> tuple[torch.UntypedStorage, int]:
        if index not in self._made:
            nbytes, anchor, anchor_start = self._memories[index]
            known = None if anchor is None else self._known.get(("buffer", *anchor))
            within = None if known is None else _around(known, anchor_start, nbytes)
            fresh = torch.zeros(nbytes, dtype=torch.uint8, device=device).untyped_storage()
            self._made[index] = (fresh, 0) if within is None else within
        return self._made[index]


def _around(known: Tensor, start: int, nbytes: int) -> tuple[torch.UntypedStorage, int] | None:
    """Returns the memory of a buffer and where the shared part begins in it, None if it is too small."""
    storage = known.untyped_storage()
    base = known.data_ptr() - storage.data_ptr() - start
    return (storage, base) if base >= 0 and base + nbytes <= storage.nbytes() else None
