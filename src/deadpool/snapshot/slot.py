"""The bytes of one slot: a header page, then the regions `record`, `unique` and `replica`. Owns this format.

A writer clears the header first and writes it last. So a slot with a readable header is complete, and a slot without
one is free or being written, whatever its regions contain.

The digest of a region is xxh3_64 over the concatenated little-endian xxh3_64 of its pieces (PIECE_BYTES each, the last
one shorter). So pieces can be verified in any order, by several threads, while they are still in the cache.

`replica` comes last: a slot without it has every other region at the same place, and a holder that never gets the
replica region needs no memory for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash

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
    digest_of,
    extent_of,
)

PIECE_BYTES = 4 << 20

__all__ = [
    "HEADER_BYTES",
    "PIECE_BYTES",
    "REGIONS",
    "Digest",
    "Extent",
    "Geometry",
    "Region",
    "Seal",
    "clear_seal",
    "combine_pieces",
    "compute_digest",
    "digest_of",
    "digest_region",
    "extent_of",
    "piece_digest",
    "pieces",
    "read_seal",
    "region",
    "seal_slot",
    "write_seal",
]

_MAGIC = b"DPSLOT\r\n"
_FORMAT = 1
_FIELDS = struct.Struct("<HHxxxxQQQQ3Q3Q")  # format, full, rank, born term, born n, number, extent, digest
_CHECK = struct.Struct("<Q")
_FIELDS_END = len(_MAGIC) + _FIELDS.size


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
    """Makes the slot a snapshot. A writer calls it last, when all regions are in place."""
    fields = _encode(seal)
    clear_seal(view)
    view[len(_MAGIC) : _FIELDS_END] = fields
    view[_FIELDS_END : _FIELDS_END + _CHECK.size] = _CHECK.pack(xxhash.xxh3_64_intdigest(fields))
    view[: len(_MAGIC)] = _MAGIC


def read_seal(view: memoryview) -> Seal | None:
    """Returns the seal of the slot, or None if it is free, being written, torn or of another format."""
    if len(view) < HEADER_BYTES or view[: len(_MAGIC)] != _MAGIC:
        return None
    fields = bytes(view[len(_MAGIC) : _FIELDS_END])
    (check,) = _CHECK.unpack_from(view, _FIELDS_END)
    if check != xxhash.xxh3_64_intdigest(fields):
        return None
    return _decode(fields)


def _encode(seal: Seal) -> bytes:
    extent, digest, born = seal.extent, seal.digest, seal.version.born
    return _FIELDS.pack(
        *(_FORMAT, int(seal.full), seal.rank, born.term, born.n, seal.version.number),
        *(extent.record_bytes, extent.unique_bytes, extent.replica_bytes),
        *(digest.record, digest.unique, digest.replica),
    )


def _decode(fields: bytes) -> Seal | None:
    format_number, full, rank, term, n, number, *sizes_and_digests = _FIELDS.unpack(fields)
    if format_number != _FORMAT:
        return None
    record_bytes, unique_bytes, replica_bytes, record, unique, replica = sizes_and_digests
    return Seal(
        rank=rank,
        version=Version(Generation(term, n), number),
        extent=Extent(record_bytes=record_bytes, unique_bytes=unique_bytes, replica_bytes=replica_bytes),
        digest=Digest(record=record, unique=unique, replica=replica),
        full=bool(full),
    )


def piece_digest(piece: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(piece)


def combine_pieces(digests: Sequence[int]) -> int:
    """Returns the digest of a region from those of its pieces, in their order."""
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(digests)}Q", *digests))


def pieces(view: memoryview) -> list[memoryview]:
    return [view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)]


def digest_region(view: memoryview, pool: ThreadPoolExecutor | None = None) -> int:
    """Returns the digest of one region. xxhash gives up the GIL on large pieces, so a pool hashes in parallel."""
    parts = pieces(view)
    return combine_pieces(list(pool.map(piece_digest, parts) if pool else map(piece_digest, parts)))


def compute_digest(
    view: memoryview, geometry: Geometry, extent: Extent, pool: ThreadPoolExecutor | None = None
) -> Digest:
    """Returns the digests of all three regions of a slot."""
    values = {name: digest_region(region(view, geometry, extent, name), pool) for name in REGIONS}
    return Digest(**values)


def seal_slot(
    view: memoryview,
    geometry: Geometry,
    *,
    rank: int,
    version: Version,
    extent: Extent,
    pool: ThreadPoolExecutor | None = None,
) -> Seal:
    """Computes the digests of a slot that a trainer has filled, and writes its header. The agent does that when it gets
    CaptureDone (rule 8, sealing after the abort flag)."""
    geometry.check(extent)
    digest = compute_digest(view, geometry, extent, pool)
    seal = Seal(rank=rank, version=version, extent=extent, digest=digest, full=True)
    write_seal(view, seal)
    return seal
