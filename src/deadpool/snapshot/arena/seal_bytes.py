"""The bytes of a seal: the same in the header of a slot, in the frames of a transfer and in a salvaged file. No torch.

All numbers are little-endian, and a checksum over them comes last: a seal that was torn or damaged is none.
"""

from __future__ import annotations

import struct

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Digest, Extent, Seal
from deadpool.snapshot.arena.checksums import checksum

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
