"""Moves between live tensors and a slot, and whether the tensors are still the same.

The moves of one slot are made once, for both directions. Lanes execute them.

Small tensors lie side by side in a slot (layout.py), so that a device can gather them into one buffer and copy that.

`TensorCheck` checks whether the tensors of a bulk still have the same identities, addresses and shapes.

It runs at every step boundary, so it is written for speed: it compares lists in C and makes no object per tensor. It
notices everything that a full scan (bulk.find_live) would notice: another tensor in a place, an added or removed
key, other memory under a tensor, another shape.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deadpool.protocol.seal import Geometry
from deadpool.snapshot.record.layout import SMALL_BYTES, TensorEntry
from deadpool.snapshot.record.tensors import integer_view, is_dtensor, local_address
from deadpool.snapshot.state.objects import Key, ProtectedOptimizer

Array = np.ndarray[Any, Any]

_INTEGERS = {1: "u1", 2: "i2", 4: "i4", 8: "i8", 16: "c16"}  # the types of integer_view()

MOVE_BYTES = 64 << 20
"""Larger tensors are copied in several moves: between two of them a capture can be given up."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """The same elements in a slot and in live memory, as integers of one size and in one shape."""

    stored: Array
    live: Tensor

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class TensorRun:
    """Small tensors of one item size and device, side by side in a slot."""

    stored: Array  # the whole run, flat
    moves: tuple[Move, ...]

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """All copies between one slot and one device."""

    single: list[Move] = field(default_factory=list)
    runs: list[TensorRun] = field(default_factory=list)


def make_moves(
    entries: Iterable[TensorEntry],
    live: Mapping[Key, Tensor],
    whole: Array,
    geometry: Geometry,
    limit_bytes: int | None = None,
) -> dict[torch.device, Moves]:
    """Makes moves by device. `live` are local parts. No move and no run is longer than the limit, if one is given."""
    moves: dict[torch.device, Moves] = {}
    for neighbours in _neighbours([entry for entry in entries if entry.nbytes], live, limit_bytes):
        found = [Move(window(whole, geometry, each), integer_view(live[each.key])) for each in neighbours]
        of_device = moves.setdefault(found[0].live.device, Moves())
        stored = _joined_window(whole, geometry, neighbours)
        joined = _joined(found)
        if joined is not None:
            of_device.single.extend(cut_move(Move(stored, joined), limit_bytes or MOVE_BYTES))
        elif len(found) == 1:
            of_device.single.extend(cut_move(found[0], limit_bytes or MOVE_BYTES))
        else:
            of_device.runs.append(TensorRun(stored, tuple(found)))
    return moves


def window(whole: Array, geometry: Geometry, entry: TensorEntry) -> Array:
    """Returns an entry's place in a slot, as integers of its item size."""
    return _joined_window(whole, geometry, [entry]).reshape(entry.shape)


def _joined_window(whole: Array, geometry: Geometry, entries: list[TensorEntry]) -> Array:
    first, last = entries[0], entries[-1]
    start = geometry.offset(first.region)
    item_bytes = first.dtype.itemsize
    integers = np.dtype(_INTEGERS[item_bytes])
    return whole[start + first.offset : start + last.offset + last.nbytes].view(integers)


def _neighbours(
    entries: list[TensorEntry], live: Mapping[Key, Tensor], limit_bytes: int | None
) -> Iterator[list[TensorEntry]]:
    """Groups small entries that are side by side in the slot and on one device; any other entry is its own group."""
    ordered = sorted(entries, key=lambda entry: (entry.region, entry.offset))
    group: list[TensorEntry] = []
    for entry in ordered:
        full = limit_bytes is not None and group and entry.offset + entry.nbytes - group[0].offset > limit_bytes
        if group and (full or not _continues(group[-1], entry, live)):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def _continues(before: TensorEntry, entry: TensorEntry, live: Mapping[Key, Tensor]) -> bool:
    return (
        before.region == entry.region
        and before.offset + before.nbytes == entry.offset
        and before.dtype.itemsize == entry.dtype.itemsize
        and max(before.nbytes, entry.nbytes) < SMALL_BYTES
        and live[before.key].device == live[entry.key].device
    )


def _joined(moves: list[Move]) -> Tensor | None:
    """Returns one flat tensor over all of them if they are side by side in live memory too."""
    first = moves[0].live
    address, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for move in moves:
        live = move.live
        same_storage = live.untyped_storage().data_ptr() == storage
        if not (live.is_contiguous() and live.data_ptr() == address and same_storage):
            return None
        address += move.nbytes
    count = sum(move.live.numel() for move in moves)
    return first.as_strided((count,), (1,))


def cut_move(move: Move, limit_bytes: int) -> Iterator[Move]:
    """Cuts a move into moves of up to the limit. One that is not contiguous stays whole."""
    if move.nbytes <= limit_bytes or not move.live.is_contiguous():
        yield move
        return
    stored, live, count = move.stored.reshape(-1), move.live.view(-1), limit_bytes // move.stored.itemsize
    for start in range(0, stored.size, count):
        yield Move(stored[start : start + count], live[start : start + count])


_data_ptr = Tensor.data_ptr
_shape = operator.attrgetter("shape")


@dataclass(frozen=True, slots=True, eq=False)
class _States:
    """The state of one optimizer: the keys of each parameter's state, and all values in order."""

    holders: list[Any]
    keys: list[tuple[Any, ...]]
    values: list[Any]
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class TensorCheck:
    """The tensors of a bulk, in the form in which they are compared."""

    params: list[Tensor]
    states: dict[str, _States]
    are_tensors: dict[str, list[bool]]
    tensors: list[Tensor]
    are_dtensors: list[bool]  # which of the tensors are DTensors
    addresses: list[int]
    shapes: list[Any]

    @classmethod
    def of(cls, params: list[Tensor], optimizers: Mapping[str, ProtectedOptimizer]) -> TensorCheck:
        states = {name: _states_of(optimizer) for name, optimizer in optimizers.items()}
        masks = {name: [isinstance(value, Tensor) for value in each.values] for name, each in states.items()}
        tensors = [*params, *(value for name, each in states.items() for value in compress(each.values, masks[name]))]
        are_dtensors = [is_dtensor(tensor) for tensor in tensors]
        return cls(
            params, states, masks, tensors, are_dtensors, _addresses(tensors, are_dtensors), list(map(_shape, tensors))
        )

    def still_holds(self, params: list[Tensor], optimizers: Mapping[str, ProtectedOptimizer]) -> bool:
        tensors = list(params)
        for name, optimizer in optimizers.items():
            before, now, mask = self.states[name], _states_of(optimizer), self.are_tensors[name]
            if not _alike(before, now):
                return False
            if not all(mask) and any(
                isinstance(value, Tensor) for value in compress(now.values, map(operator.not_, mask))
            ):
                return False
            tensors.extend(compress(now.values, mask))
        return (
            len(tensors) == len(self.tensors)
            and all(map(operator.is_, tensors, self.tensors))
            and list(map(_shape, tensors)) == self.shapes
            and _addresses(tensors, self.are_dtensors) == self.addresses
        )


def _alike(before: _States, now: _States) -> bool:
    return (
        before.count == now.count
        and len(before.holders) == len(now.holders)
        and all(map(operator.is_, before.holders, now.holders))
        and before.keys == now.keys
    )


def _states_of(optimizer: ProtectedOptimizer) -> _States:
    """Collects state by parameter, in the order of the groups."""
    states = optimizer.inner.state
    params = optimizer.params
    found = [states.get(param) for param in params]
    values: list[Any] = []
    for state in found:
        if state is not None:
            values.extend(state.values())
    keys = [() if state is None else tuple(state) for state in found]
    holders = [param if state is not None else None for param, state in zip(params, found, strict=True)]
    return _States(holders, keys, values, len(states))


def _addresses(tensors: list[Tensor], are_dtensors: Iterable[bool]) -> list[int]:
    if not any(are_dtensors):
        return list(map(_data_ptr, tensors))
    return [
        local_address(each) if is_dtensor_ else each.data_ptr()
        for each, is_dtensor_ in zip(tensors, are_dtensors, strict=True)
    ]
