"""Plans of copies between live tensors and a slot, and whether a plan still holds.

Plans the copies between live tensors and one slot, once for both directions. Lanes execute them.

Small tensors lie side by side in a slot (layout.py), so that a device can gather them into one buffer and copy that.

`PlanCheck` checks whether a copy plan is still valid: whether the tensors have the same identities, addresses and
shapes.

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

COPY_PIECE_BYTES = 64 << 20
"""Larger tensors are moved in pieces: between two of them a capture can be given up."""


@dataclass(frozen=True, slots=True, eq=False)
class CopyPiece:
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
    pieces: tuple[CopyPiece, ...]

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """All copies between one slot and one device."""

    pieces: list[CopyPiece] = field(default_factory=list)
    runs: list[TensorRun] = field(default_factory=list)


def make_moves(
    entries: Iterable[TensorEntry],
    live: Mapping[Key, Tensor],
    whole: Array,
    geometry: Geometry,
    limit_bytes: int | None = None,
) -> dict[torch.device, Moves]:
    """Plans copies by device. `live` are local parts. No piece and no run is longer than the limit, if one is given."""
    moves: dict[torch.device, Moves] = {}
    for neighbours in _neighbours([entry for entry in entries if entry.nbytes], live, limit_bytes):
        pieces = [CopyPiece(window(whole, geometry, each), integer_view(live[each.key])) for each in neighbours]
        of_device = moves.setdefault(pieces[0].live.device, Moves())
        stored = _joined_window(whole, geometry, neighbours)
        joined = _joined(pieces)
        if joined is not None:
            of_device.pieces.extend(cut_piece(CopyPiece(stored, joined), limit_bytes or COPY_PIECE_BYTES))
        elif len(pieces) == 1:
            of_device.pieces.extend(cut_piece(pieces[0], limit_bytes or COPY_PIECE_BYTES))
        else:
            of_device.runs.append(TensorRun(stored, tuple(pieces)))
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


def _joined(pieces: list[CopyPiece]) -> Tensor | None:
    """Returns one flat tensor over all pieces if they are side by side in live memory too."""
    first = pieces[0].live
    address, storage = first.data_ptr(), first.untyped_storage().data_ptr()
    for piece in pieces:
        live = piece.live
        same_storage = live.untyped_storage().data_ptr() == storage
        if not (live.is_contiguous() and live.data_ptr() == address and same_storage):
            return None
        address += piece.nbytes
    count = sum(piece.live.numel() for piece in pieces)
    return first.as_strided((count,), (1,))


def cut_piece(piece: CopyPiece, limit_bytes: int) -> Iterator[CopyPiece]:
    """Cuts a piece into pieces of up to the limit. One that is not contiguous stays whole."""
    if piece.nbytes <= limit_bytes or not piece.live.is_contiguous():
        yield piece
        return
    stored, live, count = piece.stored.reshape(-1), piece.live.view(-1), limit_bytes // piece.stored.itemsize
    for start in range(0, stored.size, count):
        yield CopyPiece(stored[start : start + count], live[start : start + count])


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
class PlanCheck:
    """The tensors that a plan was made for."""

    params: list[Tensor]
    states: dict[str, _States]
    are_tensors: dict[str, list[bool]]
    tensors: list[Tensor]
    are_dtensors: list[bool]  # which of the tensors are DTensors
    addresses: list[int]
    shapes: list[Any]

    @classmethod
    def of(cls, params: list[Tensor], optimizers: Mapping[str, ProtectedOptimizer]) -> PlanCheck:
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
