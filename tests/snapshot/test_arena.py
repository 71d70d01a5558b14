from __future__ import annotations

import os

import pytest

from deadpool.errors import ArenaError
from deadpool.host.host_memory import room
from deadpool.protocol.seal import Geometry
from deadpool.snapshot.arena.arena import Arena, Segment

GEOMETRY = Geometry(record_capacity=100, unique_bytes=5000, replica_bytes=0)


def test_what_one_mapping_writes_the_other_reads(stack):
    segment = Segment.create("test", GEOMETRY, 3)
    segment.prefault()
    attached = Segment.attach(os.dup(segment.fd), GEOMETRY, 3)
    segment.slot(2)[-3:] = b"abc"
    assert bytes(attached.slot(2)[-3:]) == b"abc"
    assert bytes(attached.slot(1)[-3:]) == bytes(3)
    segment.close()
    assert bytes(attached.slot(2)[-3:]) == b"abc"
    attached.close()


def test_seals_stop_truncation():
    segment = Segment.create("test", GEOMETRY, 1)
    for size in (0, segment.total_bytes * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, size)
    segment.close()


def test_attach_to_a_segment_of_another_size_is_refused():
    segment = Segment.create("test", GEOMETRY, 1)
    with pytest.raises(ArenaError, match="2 slots need"):
        Segment.attach(segment.fd, GEOMETRY, 2)
    segment.close()


def test_more_memory_than_there_is_says_how_much_and_what_to_do():
    too_large = Geometry(record_capacity=0, unique_bytes=room().bytes * 2, replica_bytes=0)
    with pytest.raises(ArenaError, match=r"cannot allocate .* GiB .* use fewer slots"):
        Segment.create("test", too_large, 1)


def test_closing_under_a_reader_leaves_it_its_bytes():
    segment = Segment.create("test", GEOMETRY, 1)
    slot = segment.slot(0)
    slot[0] = 9
    segment.close()
    segment.close()
    assert slot[0] == 9


def test_arena_counts_and_frees():
    arena = Arena()
    one = arena.create(("own", 1), GEOMETRY, 2)
    arena.create(("held", 0), GEOMETRY, 1)
    assert arena.keys() == (("held", 0), ("own", 1))
    assert arena.get(("own", 1)) is one
    assert arena.bytes_in_use == 3 * GEOMETRY.slot_bytes
    with pytest.raises(ArenaError, match="exists already"):
        arena.create(("own", 1), GEOMETRY, 2)
    arena.drop(("own", 1))
    assert arena.get(("own", 1)) is None
    assert arena.bytes_in_use == GEOMETRY.slot_bytes
    arena.close()
    assert arena.bytes_in_use == 0


def test_closed_while_its_memory_is_being_made(monkeypatch):
    """State that grows frees the segments that it had, even while their memory is being prefaulted."""
    segment, populated = Segment.create("test", GEOMETRY, 100), []

    def populate(stride, total_bytes):
        populated.append(len(stride))
        segment.close()

    monkeypatch.setattr("deadpool.snapshot.arena.arena._populate", populate)
    monkeypatch.setattr("deadpool.snapshot.arena.arena._PREFAULT_STRIDE_BYTES", GEOMETRY.slot_bytes)
    segment.prefault()
    assert 0 < len(populated) < 50  # the strides that threads had begun
    populated.clear()
    segment.prefault(range(1, 3))
    assert populated == []
