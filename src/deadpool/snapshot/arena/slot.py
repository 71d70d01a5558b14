"""The bytes of one slot: a header page, then the regions `record`, `unique` and `replica`. Owns this format.

A writer clears the header before it writes anything else, and writes the header last. So a slot with a readable header
is whole, and a slot without one is free or being written, whatever its regions contain.

`replica` comes last: a slot that lacks it has every other region at the same place, and a holder that is never sent the
replica region needs no memory for it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from deadpool.errors import ArenaError
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
from deadpool.snapshot.arena.piece_digests import PieceDigests, digest_pieces
from deadpool.snapshot.arena.seal_bytes import SEAL_BYTES, pack_seal, unpack_seal

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
