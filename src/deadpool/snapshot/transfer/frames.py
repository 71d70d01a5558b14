"""The frames that agents exchange on the data plane, and the values in them. Owns this format.

A frame is a fixed head (magic, kind, sizes, generation), a small msgpack body, and for DATA the raw bytes after it
(for CONTRIBUTE and DESCRIPTION a list of digests).
Every size is bounded before anything is read or allocated, and nothing here can carry code.

REFUSED says why: a Refusal, and words about it for people.

    HELLO                     is the first frame of a connection and names its generation
    PUSH   -> ACCEPT|REFUSED  asks to send a snapshot;     then DATA on any stream, STORED|REFUSED on this one
    PULL   -> FOUND|REFUSED   asks for a snapshot;         then READ -> DATA|REFUSED on any stream

    LOOK, WINDOW, TAKEN and AGAIN are of windows (windows.py)

CONTRIBUTE, DESCRIBE, DESCRIPTION and READ_ROW are of joint copies, and belong to the feature that makes them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

import msgpack

from deadpool.errors import WireError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.identity import Generation
from deadpool.protocol.seal import REGIONS, Extent, Geometry, Region, Seal, extent_of
from deadpool.snapshot.arena.checksums import PIECE_BYTES
from deadpool.snapshot.arena.slot import unpack_seal

BODY_LIMIT_BYTES = 16 << 10
CHUNK_BYTES = 16 * PIECE_BYTES
"""The most bytes in one DATA frame. They are whole pieces, so that each stream can verify what it received."""

_MAGIC = b"DPx2"
_HEAD = struct.Struct("!4sBxxxIQQQ")  # magic, kind, body bytes, payload bytes, generation term, generation n
HEAD_BYTES = _HEAD.size
_LIMIT = 1 << 63


class Kind(IntEnum):
    HELLO = 1
    PUSH = 2
    ACCEPT = 3
    REFUSED = 4
    DATA = 5
    STORED = 6
    PULL = 7
    FOUND = 8
    READ = 9
    CONTRIBUTE = 10
    DESCRIBE = 11
    DESCRIPTION = 12
    READ_ROW = 13
    LOOK = 14
    WINDOW = 15
    TAKEN = 16
    AGAIN = 17


_METADATA_LIMIT_BYTES = 64 << 10
_PAYLOAD_LIMITS = dict.fromkeys((Kind.DATA, Kind.ACCEPT, Kind.CONTRIBUTE, Kind.DESCRIPTION), CHUNK_BYTES) | {
    Kind.WINDOW: _METADATA_LIMIT_BYTES
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    kind: Kind
    generation: Generation
    body_bytes: int
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    head: Head
    body: list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive whole pieces of one region, which one DATA frame carries."""

    region: Region
    offset: int
    size: int


def pack_frame(kind: Kind, generation: Generation, body: list[Any], payload_bytes: int = 0) -> bytes:
    packed = cast(bytes, msgpack.packb(body))
    head = _HEAD.pack(_MAGIC, kind, len(packed), payload_bytes, generation.term, generation.n)
    return head + packed


def unpack_head(data: bytes | bytearray) -> Head:
    magic, kind, body_bytes, payload_bytes, term, n = _HEAD.unpack(data)
    if magic != _MAGIC or kind not in Kind.__members__.values():
        raise WireError("not a transfer frame")
    if body_bytes > BODY_LIMIT_BYTES or payload_bytes > _PAYLOAD_LIMITS.get(Kind(kind), 0):
        raise WireError(f"frame too large: body {body_bytes}, payload {payload_bytes} bytes")
    return Head(kind=Kind(kind), generation=Generation(term, n), body_bytes=body_bytes, payload_bytes=payload_bytes)


def unpack_body(data: bytes | bytearray) -> list[Any]:
    try:
        body = msgpack.unpackb(data)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"frame body is not msgpack: {error}") from error
    if not isinstance(body, list):
        raise WireError("frame body is not a list")
    return body


def chunks_of(extent: Extent, regions: tuple[Region, ...], *, at_least: int = 4) -> list[Chunk]:
    """Divides some regions into chunks, which are small enough that streams that share them end at the same time."""
    total_bytes = sum(extent_of(extent, name) for name in regions)
    size_bytes = min(CHUNK_BYTES, max(PIECE_BYTES, total_bytes // at_least // PIECE_BYTES * PIECE_BYTES))
    result = []
    for name in regions:
        size = extent_of(extent, name)
        for offset in range(0, size, size_bytes):
            result.append(Chunk(region=name, offset=offset, size=min(size_bytes, size - offset)))
    return result


def pack_refusal(refusal: Refusal, reason: str) -> list[Any]:
    return [refusal.value, reason]


def unpack_refusal(values: list[Any]) -> tuple[Refusal, str]:
    """Why, and what there is to say about it to people; or WireError."""
    if len(values) != 2 or not all(isinstance(value, str) for value in values):
        raise WireError("expected a refusal")
    try:
        return Refusal(values[0]), values[1][:500]
    except ValueError as error:
        raise WireError(f"no refusal {values[0][:50]!r}") from error


def naturals(values: list[Any], count: int) -> list[int]:
    """Returns `values` if they are that many non-negative integers, else raises a WireError."""
    if len(values) != count or not all(type(value) is int and value >= 0 for value in values):
        raise WireError(f"expected {count} natural numbers")
    return values


def read_seal_field(value: Any) -> Seal:
    """A seal as a field of a frame's body, or WireError."""
    seal = unpack_seal(value) if isinstance(value, bytes) else None
    if seal is None:
        raise WireError("expected a seal")
    return seal


def pack_geometry(geometry: Geometry) -> list[Any]:
    return [geometry.record_capacity, geometry.unique_bytes, geometry.replica_bytes]


def unpack_geometry(values: list[Any]) -> Geometry:
    record_capacity, unique_bytes, replica_bytes = naturals(values, 3)
    if max(values) >= _LIMIT:
        raise WireError("geometry out of range")
    return Geometry(record_capacity=record_capacity, unique_bytes=unique_bytes, replica_bytes=replica_bytes)


def pack_chunk(chunk: Chunk) -> list[Any]:
    return [REGIONS.index(chunk.region), chunk.offset, chunk.size]


def unpack_chunk(values: list[Any], extent: Extent) -> Chunk:
    """Returns a chunk that lies within `extent` and consists of whole pieces, or raises a WireError."""
    index, offset, size = naturals(values, 3)
    if index >= len(REGIONS):
        raise WireError(f"no region {index}")
    end, region_end = offset + size, extent_of(extent, REGIONS[index])
    whole = offset % PIECE_BYTES == 0 and (end % PIECE_BYTES == 0 or end == region_end)
    if not whole or not 0 < size <= CHUNK_BYTES or end > region_end:
        raise WireError(f"bytes {offset}..{end} are not a chunk of region {REGIONS[index]!r}")
    return Chunk(region=REGIONS[index], offset=offset, size=size)
