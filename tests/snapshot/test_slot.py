from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from snapshot_nodes import EXTENT, GEOMETRY, VERSION

from deadpool.errors import ArenaError
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal
from deadpool.snapshot.arena.checksums import PIECE_BYTES, digest_region
from deadpool.snapshot.arena.slot import (
    HEADER_BYTES,
    clear_seal,
    read_seal,
    region,
    write_seal,
)

SEAL = Seal(
    rank=5,
    version=Version(Generation(2**40, 9), 123_456),
    extent=EXTENT,
    digest=Digest(record=2**64 - 1, unique=0, replica=7),
    full=False,
)


def fresh_slot() -> memoryview:
    return memoryview(bytearray(HEADER_BYTES))


@pytest.mark.parametrize("seal", [SEAL, replace(SEAL, full=True), replace(SEAL, rank=0, version=VERSION)])
def test_header_round_trip(seal):
    slot = fresh_slot()
    assert read_seal(slot) is None
    write_seal(slot, seal)
    assert read_seal(slot) == seal
    clear_seal(slot)
    assert read_seal(slot) is None


def test_every_torn_header_is_none():
    whole = fresh_slot()
    write_seal(whole, SEAL)
    other = fresh_slot()
    write_seal(other, replace(SEAL, rank=6, version=VERSION, full=True))
    for cut in range(1, 200):
        if other[:cut] != whole[:cut] and other[cut:] != whole[cut:]:
            assert read_seal(memoryview(bytearray(bytes(whole[:cut]) + bytes(other[cut:])))) is None


def test_any_flipped_bit_makes_the_header_unreadable():
    slot = fresh_slot()
    write_seal(slot, SEAL)
    for position in range(len(bytes(slot).rstrip(b"\0"))):
        slot[position] ^= 4
        assert read_seal(slot) is None
        slot[position] ^= 4
    assert read_seal(slot) == SEAL


def test_regions_are_page_aligned_and_apart():
    starts = [GEOMETRY.offset(name) for name in ("record", "unique", "replica")]
    assert starts == [4096, 4096 + 12288, 4096 + 12288 + (20 << 20)]
    assert GEOMETRY.slot_bytes % 4096 == 0
    assert GEOMETRY.without_replica().slot_bytes == starts[2]


def test_region_that_does_not_fit_is_an_error():
    with pytest.raises(ArenaError, match="no room for region 'unique'"):
        region(fresh_slot(), GEOMETRY, EXTENT, "unique")
    with pytest.raises(ArenaError, match="'record' has 10001 bytes, the slot has room for 10000"):
        GEOMETRY.check(Extent(record_bytes=10_001, unique_bytes=0, replica_bytes=0))


def test_digest_is_the_same_on_several_threads_and_sees_length_and_order():
    data = bytearray(3 * PIECE_BYTES + 5)
    data[PIECE_BYTES] = 1
    swapped = bytearray(data)
    swapped[PIECE_BYTES], swapped[0] = 0, 1
    view = memoryview(data)
    with ThreadPoolExecutor(2) as pool:
        assert digest_region(view, pool) == digest_region(view)
    different = {digest_region(memoryview(each)) for each in (data, swapped, data[:-1], b"", b"\0")}
    assert len(different) == 5


def test_empty_geometry_is_a_header_page():
    assert Geometry(record_capacity=0, unique_bytes=0, replica_bytes=0).slot_bytes == HEADER_BYTES
