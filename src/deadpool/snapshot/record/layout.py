"""Describes where each tensor lies in a slot, and what is needed to build it again. Owns the bytes of that description.

Entries are packed without gaps, those with larger items first. So every entry is aligned to its item size, and no byte
of a region is undefined: two replicas with equal tensors have equal regions and equal checksums. Among items of one
size small tensors lie side by side, and so do scalars, which optimizers keep on the host, whatever their device.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import torch

from deadpool.errors import StateError
from deadpool.snapshot.record import record
from deadpool.snapshot.record.tensors import dtype_from_name, dtype_name
from deadpool.snapshot.state.objects import Key

BulkRegion = Literal["unique", "replica"]

STAGED_KINDS = ("buffer",)
"""Kinds of entries that a forward pass may overwrite: they are cloned at the boundary, and the clone is copied."""

SMALL_BYTES = 1 << 20
"""Tensors below this size are gathered before they are copied."""

DTensorSpec = tuple[tuple[tuple[Any, ...], ...], tuple[int, ...], tuple[int, ...]]
"""The placements, global shape and global stride of a DTensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """The place of one tensor's local bytes in a slot. The offset counts from the start of the region."""

    key: Key
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int
    region: BulkRegion
    offset: int
    device_type: str
    like_param: bool
    dtensor_spec: DTensorSpec | None
    name: str  # in a checkpoint of the whole job, as torch.distributed.checkpoint names it
    start: tuple[int, ...]  # where this part begins in the whole tensor
    alike: int  # index of the ranks that hold the same bytes
    sharing: int  # index of the ranks that the whole tensor lies on


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLayout:
    """All bulk entries of a snapshot, and the keys of each parameter's optimizer state in their order. Entries name
    sets of ranks by their index in `ranks`, because thousands of entries share a few large sets."""

    entries: tuple[TensorEntry, ...]
    state_keys: dict[str, dict[int, tuple[Any, ...]]]
    ranks: tuple[tuple[int, ...], ...]

    def region_bytes(self, region: BulkRegion) -> int:
        return sum(entry.nbytes for entry in self.entries if entry.region == region)


def packing_order(kind: str, item_bytes: int, count: int) -> tuple[int, int]:
    """Returns the sort key by which tensors are placed: by item size, then by what is copied together."""
    if kind in STAGED_KINDS:
        return -item_bytes, 3
    if count <= 1:
        return -item_bytes, 2
    return -item_bytes, int(item_bytes * count < SMALL_BYTES)


class Packer:
    """Assigns offsets. It must be called with entries in packing order."""

    def __init__(self) -> None:
        self._ends: dict[BulkRegion, int] = {"unique": 0, "replica": 0}

    def place(self, region: BulkRegion, nbytes: int) -> int:
        offset = self._ends[region]
        self._ends[region] = offset + nbytes
        return offset


def encode_layout(layout: SlotLayout) -> bytes:
    """Compressed, because it is a part of every version: it is encoded once, and travels in every step."""
    rows = [
        (*entry.key, dtype_name(entry.dtype), entry.shape, entry.region, entry.offset, *_origin(entry))
        for entry in layout.entries
    ]
    return zlib.compress(record.encode([rows, layout.state_keys, layout.ranks], "layout"))


def _origin(entry: TensorEntry) -> tuple[Any, ...]:
    of_whole = entry.name, entry.start, entry.alike, entry.sharing
    return entry.nbytes, entry.device_type, entry.like_param, entry.dtensor_spec, *of_whole


def decode_layout(data: bytes) -> SlotLayout:
    try:
        plain = zlib.decompress(data)
    except zlib.error as error:
        raise StateError(f"layout: the stored state is damaged or of another format ({error})") from error
    rows, state_keys, ranks = record.decode(plain, "layout")
    return SlotLayout(entries=tuple(map(_entry, rows)), state_keys=state_keys, ranks=ranks)


def _entry(row: tuple[Any, ...]) -> TensorEntry:
    kind, keyword, index, state_key, dtype, shape, region, offset, nbytes, device_type, like_param, *of_whole = row
    dtensor_spec, name, start, alike, sharing = of_whole
    return TensorEntry(
        key=(kind, keyword, index, state_key),
        dtype=dtype_from_name(dtype),
        shape=shape,
        nbytes=nbytes,
        region=region,
        offset=offset,
        device_type=device_type,
        like_param=like_param,
        dtensor_spec=dtensor_spec,
        name=name,
        start=start,
        alike=alike,
        sharing=sharing,
    )


RECORD_FORMAT = 2


def join_record(layout: bytes, host: dict[str, dict[str, bytes]]) -> bytes:
    """Makes a boundary record of the layout of its bulk, and of the host parts by kind and keyword."""
    joined: bytes = msgpack.packb([RECORD_FORMAT, layout, host])
    return joined


def split_record(data: bytes) -> tuple[bytes, dict[str, dict[str, bytes]]]:
    try:
        number, layout, host = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateError(f"this is not a boundary record ({error})") from error
    if number != RECORD_FORMAT:
        raise StateError(f"the boundary record has format {number}, but this version reads format {RECORD_FORMAT}")
    return layout, host
