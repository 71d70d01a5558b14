"""Plans the copies between live tensors and one slot, once for both directions. Lanes execute them.

Small tensors lie side by side in a slot (layout.py), so that a device can gather them into one buffer and copy that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deadpool.protocol.seal import Geometry
from deadpool.snapshot.record.layout import SMALL_BYTES, TensorEntry
from deadpool.snapshot.record.tensors import integer_view
from deadpool.snapshot.state.objects import Key

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
