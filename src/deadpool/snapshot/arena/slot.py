"""The bytes of a slot: its seal, its regions, and how much of it has arrived.

The bytes of one slot: a header page, then the regions `record`, `unique` and `replica`. Owns this format.

A writer clears the header before it writes anything else, and writes the header last. So a slot with a readable
header is whole, and a slot without one is free or being written, whatever its regions contain.

`replica` comes last: a slot that lacks it has every other region at the same place, and a holder that is never sent
the replica region needs no memory for it.

`pack_seal` and `unpack_seal`: the bytes of a seal: the same in the header of a slot, in the frames of a transfer and
in a salvaged file. No torch.

All numbers are little-endian, and a checksum over them comes last: a seal that was torn or damaged is none.

`Arrived` and `Progress` publish how much of an arriving snapshot is in its slot, in the slot's header page, which
other processes map too.

There is one word per region: the number of the attempt, and how many leading bytes have arrived. The node's agent
writes the words; the trainer that the snapshot is for reads them before the snapshot is verified. What the trainer
has loaded by these words counts only after the agent has verified the whole snapshot against its seal.

An agent never uses the number of an attempt twice. So a trainer that reads the same number before and after a copy
has copied bytes of that attempt, whatever happened to the slot in between, and old words do no harm.
"""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from deadpool.errors import ArenaError
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import (
    HEADER_BYTES,
    REGIONS,
    Digest,
    Extent,
    Geometry,
    Region,
    Seal,
    extent_of,
)
from deadpool.snapshot.arena.checksums import PieceDigests, checksum, digest_pieces

_FORMAT = 2
_FIELDS = struct.Struct("<HHxxxxQQQQ3Q3Q")  # format, full, rank, term, n of the generation, number, extent, digest
_CHECK = struct.Struct("<Q")
SEAL_BYTES = _FIELDS.size + _CHECK.size
_REGION_LIMIT_BYTES = 1 << 63


def pack_seal(seal: Seal) -> bytes:
    extent, digest, generation = seal.extent, seal.digest, seal.version.generation
    fields = _FIELDS.pack(
        *(_FORMAT, int(seal.full), seal.rank, generation.term, generation.n, seal.version.number),
        *(extent.record_bytes, extent.unique_bytes, extent.replica_bytes),
        *(digest.record, digest.unique, digest.replica),
    )
    return fields + _CHECK.pack(checksum(fields))


def unpack_seal(data: bytes | memoryview) -> Seal | None:
    """None where the bytes are not a seal, are damaged, or are of another format."""
    if len(data) != SEAL_BYTES:
        return None
    fields = bytes(data[: _FIELDS.size])
    if _CHECK.unpack_from(data, _FIELDS.size) != (checksum(fields),):
        return None
    format_number, full, rank, term, n, number, *sizes_and_digests = _FIELDS.unpack(fields)
    record_bytes, unique_bytes, replica_bytes, record, unique, replica = sizes_and_digests
    if format_number != _FORMAT or max(record_bytes, unique_bytes, replica_bytes) >= _REGION_LIMIT_BYTES:
        return None
    return Seal(
        rank=rank,
        version=Version(Generation(term, n), number),
        extent=Extent(record_bytes=record_bytes, unique_bytes=unique_bytes, replica_bytes=replica_bytes),
        digest=Digest(record=record, unique=unique, replica=replica),
        full=bool(full),
    )


__all__ = [
    "HEADER_BYTES",
    "REGIONS",
    "Digest",
    "Extent",
    "Geometry",
    "Region",
    "Seal",
    "clear_seal",
    "compute_piece_digests",
    "extent_of",
    "read_seal",
    "region",
    "write_seal",
]

_MAGIC = b"DPSLOT\r\n"
_HEADER_END = len(_MAGIC) + SEAL_BYTES


def region(view: memoryview, geometry: Geometry, extent: Extent, name: Region) -> memoryview:
    """Returns the bytes of one region: as many as the extent says, not the whole capacity."""
    start, size = geometry.offset(name), extent_of(extent, name)
    if start + size > len(view):
        raise ArenaError(f"a slot of {len(view)} bytes has no room for region {name!r} ({size} bytes at {start})")
    return view[start : start + size]


def clear_seal(view: memoryview) -> None:
    """Makes the slot unreadable as a snapshot. Every writer calls it first."""
    view[: len(_MAGIC)] = bytes(len(_MAGIC))


def write_seal(view: memoryview, seal: Seal) -> None:
    """Make the slot a snapshot. The last act of a writer: all regions are in place."""
    clear_seal(view)
    view[len(_MAGIC) : _HEADER_END] = pack_seal(seal)
    view[: len(_MAGIC)] = _MAGIC


def read_seal(view: memoryview) -> Seal | None:
    """What the slot holds; None where it is free, being written, torn or of another format."""
    if len(view) < HEADER_BYTES or view[: len(_MAGIC)] != _MAGIC:
        return None
    return unpack_seal(view[len(_MAGIC) : _HEADER_END])


def compute_piece_digests(
    view: memoryview, geometry: Geometry, extent: Extent, pool: ThreadPoolExecutor | None = None
) -> PieceDigests:
    """Returns the digests of all pieces of a slot; those of its regions follow from them."""
    return PieceDigests(**{name: digest_pieces(region(view, geometry, extent, name), pool) for name in REGIONS})


_START = 2048  # offset in the header page, far behind the seal
_WORD_BYTES = 8
_BYTES_BITS = 44


@dataclass(frozen=True, slots=True)
class Arrived:
    """The first `leading_bytes` of a region have arrived in this attempt."""

    attempt: int
    leading_bytes: int


class Progress:
    """The words of one slot. Each word is read or written by one instruction, so it is never torn."""

    def __init__(self, slot: memoryview) -> None:
        self._lock = threading.Lock()
        self._words = slot[_START : _START + len(REGIONS) * _WORD_BYTES].cast("Q")

    def publish(self, name: Region, arrived: Arrived) -> None:
        self._keep_order()  # the bytes are in the slot before the word is
        self._words[REGIONS.index(name)] = arrived.attempt << _BYTES_BITS | arrived.leading_bytes

    def read(self, name: Region) -> Arrived:
        word = self._words[REGIONS.index(name)]
        self._keep_order()  # the bytes are read after the word was
        return Arrived(word >> _BYTES_BITS, word & ((1 << _BYTES_BITS) - 1))

    def _keep_order(self) -> None:
        """Is a memory barrier, for processors that reorder accesses: it releases a lock and acquires it again."""
        for _ in range(2):
            with self._lock:
                pass
