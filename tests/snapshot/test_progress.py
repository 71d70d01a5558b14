"""The progress of an arriving snapshot: what the agent writes beside the seal, and what a reader finds."""

from __future__ import annotations

import os
from contextlib import closing

import pytest
from snapshot_nodes import EXTENT, GEOMETRY, pull_request

from deadpool.errors import TransferError
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.arena.checksums import PIECE_BYTES
from deadpool.snapshot.arena.slot import Arrived, Progress, read_seal, write_seal
from deadpool.snapshot.transfer.frames import Chunk
from deadpool.snapshot.transfer.snapshot_arrival import ArrivedPieces


@pytest.fixture
def newcomer(stack):
    return stack.enter_context(closing(Segment.create("newcomer", GEOMETRY, 1)))


def pull(client, source, owner, segment, regions, watch):
    client.pull(pull_request(source.address, segment.slot(0), owner.seal.digest, *regions), watch)


def test_words_of_regions_are_apart_and_leave_the_seal_alone(make_owner):
    owner = make_owner()
    slot = owner.segment.slot(1)
    published = {
        "record": Arrived(1, 0),
        "unique": Arrived((1 << 20) - 1, (1 << 44) - 1),
        "replica": Arrived(7, 5 << 30),
    }
    for name, arrived in published.items():
        Progress(slot).publish(name, arrived)
    assert {name: Progress(slot).read(name) for name in published} == published
    assert read_seal(slot) == owner.seal
    write_seal(slot, owner.seal)
    assert Progress(slot).read("replica") == published["replica"]


def test_other_mapping_sees_the_words(newcomer):
    with closing(Segment.attach(os.dup(newcomer.fd), GEOMETRY, 1)) as other:
        Progress(newcomer.slot(0)).publish("unique", Arrived(2, 12345))
        assert Progress(other.slot(0)).read("unique") == Arrived(2, 12345)


@pytest.mark.parametrize("streams", [1, 2])
def test_watcher_hears_leading_bytes_from_nothing_to_all(make_owner, make_holder, make_client, newcomer, streams):
    owner = make_owner()
    reports = []
    pull(
        make_client(streams=streams),
        make_holder(gives=owner),
        owner,
        newcomer,
        ("record", "unique", "replica"),
        lambda name, count: reports.append((name, count)),
    )
    assert reports[:3] == [("record", 0), ("unique", 0), ("replica", 0)]
    # It is sent first, because everything else is placed by it; what another stream carries may overtake it.
    assert ("record", EXTENT.record_bytes) in (reports[3:4] if streams == 1 else reports)
    for name, size in (("unique", EXTENT.unique_bytes), ("replica", EXTENT.replica_bytes)):
        counts = [count for where, count in reports if where == name]
        assert counts == sorted(counts) and counts[-1] == size
        assert (
            streams > 1 or len(counts) > 2
        )  # several reports; of two streams the one with the first piece may be last
        assert all(count % PIECE_BYTES == 0 for count in counts[:-1])


def test_bytes_behind_a_gap_are_not_reported():
    """One stream may be ahead of the other: its bytes count when the gap is closed."""
    received = ArrivedPieces(EXTENT, ("unique",))
    second = Chunk(region="unique", offset=PIECE_BYTES, size=PIECE_BYTES)
    first = Chunk(region="unique", offset=0, size=PIECE_BYTES)
    received.arrived(second, [0])
    assert received.leading_bytes("unique") == 0
    received.arrived(first, [0])
    assert received.leading_bytes("unique") == 2 * PIECE_BYTES


def test_reported_bytes_have_arrived(make_owner, make_holder, make_client, newcomer):
    owner, slot = make_owner(), newcomer.slot(0)
    start, expected, seen = GEOMETRY.offset("unique"), owner.bytes_of("unique"), []

    def watch(name, count):
        if name == "unique":
            seen.append(bytes(slot[start : start + count]) == expected[:count])

    pull(make_client(), make_holder(gives=owner), owner, newcomer, ("unique",), watch)
    assert len(seen) > 2 and all(seen)


def test_refused_source_reports_nothing(make_owner, make_holder, make_client, newcomer):
    owner, reports = make_owner(), []
    with pytest.raises(TransferError, match="no snapshot"):
        pull(make_client(), make_holder(), owner, newcomer, ("unique",), lambda *words: reports.append(words))
    assert reports == []
