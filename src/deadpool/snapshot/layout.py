"""Where each tensor lies in a slot, and enough about it to build it again. Values and their bytes; owns that format.

Entries are packed without gaps, larger items first, so that every one is aligned to its item size and no byte of a
region is undefined: two replicas with equal tensors have equal regions, and equal checksums. Among items of one size
small tensors lie side by side, scalars too (those that optimizers keep on the host), whatever device they are on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgpack
import torch

from deadpool.errors import StateError
from deadpool.snapshot import record
from deadpool.snapshot.objects import Key
from deadpool.snapshot.tensors import dtype_from_name, dtype_name

BulkRegion = Literal["unique", "replica"]

STAGED_KINDS = ("buffer",)
"""Kinds of entries that forward may overwrite: cloned at the boundary, moved from there."""

SMALL_BYTES = 1 << 20
"""Smaller tensors are worth being gathered before they are moved."""

Spread = tuple[tuple[tuple[Any, ...], ...], tuple[int, ...], tuple[int, ...]]
"""A DTensor's placements, global shape and global stride."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor's local bytes in a slot. Offsets count from the start of the region."""

    key: Key
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int
    region: BulkRegion
    offset: int
    device_type: str
    like_param: bool
    spread: Spread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All bulk entries of a snapshot, and the keys of each parameter's optimizer state in their order."""

    entries: tuple[Entry, ...]
    state_keys: dict[str, dict[int, tuple[Any, ...]]]

    def region_bytes(self, region: BulkRegion) -> int:
        return sum(entry.nbytes for entry in self.entries if entry.region == region)


def packing_order(kind: str, item_bytes: int, count: int) -> tuple[int, int]:
    """The order in which tensors are placed: by item size, and then by what is moved together."""
    if kind in STAGED_KINDS:
        return -item_bytes, 3
    if count <= 1:
        return -item_bytes, 2
    return -item_bytes, int(item_bytes * count < SMALL_BYTES)


class Packer:
    """Hands out offsets. Call with entries in packing order."""

    def __init__(self) -> None:
        self._ends: dict[BulkRegion, int] = {"unique": 0, "replica": 0}

    def place(self, region: BulkRegion, nbytes: int) -> int:
        offset = self._ends[region]
        self._ends[region] = offset + nbytes
        return offset


def encode_layout(layout: Layout) -> bytes:
    rows = [
        (*entry.key, dtype_name(entry.dtype), entry.shape, entry.region, entry.offset, *_origin(entry))
        for entry in layout.entries
    ]
    return record.encode([rows, layout.state_keys], "layout")


def _origin(entry: Entry) -> tuple[Any, ...]:
    return entry.nbytes, entry.device_type, entry.like_param, entry.spread


def decode_layout(data: bytes) -> Layout:
    rows, state_keys = record.decode(data, "layout")
    return Layout(entries=tuple(map(_entry, rows)), state_keys=state_keys)


def _entry(row: tuple[Any, ...]) -> Entry:
    kind, name, index, state_key, dtype, shape, region, offset, nbytes, device_type, like_param, spread = row
    return Entry(
        key=(kind, name, index, state_key),
        dtype=dtype_from_name(dtype),
        shape=shape,
        nbytes=nbytes,
        region=region,
        offset=offset,
        device_type=device_type,
        like_param=like_param,
        spread=spread,
    )


RECORD_FORMAT = 1


def join_record(layout: bytes, host: dict[str, dict[str, bytes]]) -> bytes:
    """A boundary record: the layout of the bulk it belongs to, and the host parts by kind and keyword."""
    joined: bytes = msgpack.packb([RECORD_FORMAT, layout, host])
    return joined


def split_record(data: bytes) -> tuple[bytes, dict[str, dict[str, bytes]]]:
    try:
        number, layout, host = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateError(f"not a boundary record ({error})") from error
    if number != RECORD_FORMAT:
        raise StateError(f"boundary record of format {number}, this version reads {RECORD_FORMAT}")
    return layout, host
