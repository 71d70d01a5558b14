"""A snapshot is loaded while it arrives: only bytes that have arrived, of one attempt only, and exactly in the end."""

from __future__ import annotations

import numpy as np
import pytest
from state_job import Job, Snapshot

from deadpool.snapshot.arena.slot import Arrived, Progress
from deadpool.snapshot.state.state import Restoring

REPLICAS = (0, 1)  # the state is in the replica region


@pytest.fixture(autouse=True, params=[256, 1 << 20], ids=["many chunks", "one chunk"])
def chunk_bytes(request, monkeypatch):
    monkeypatch.setattr("deadpool.snapshot.copying.slot_load.CHUNK_BYTES", request.param)
    return request.param


class Arrival:
    """A newcomer, and a slot into which a snapshot arrives as the test orders."""

    def __init__(self, replicas=(), own=()) -> None:
        job = Job(replicas=replicas, own=own)
        job.train(3)
        self.snapshot = Snapshot(job.state)
        self.digest, self.expected = job.state.digest(), job.train(3)
        self.slot = memoryview(bytearray(b"\x5a" * self.snapshot.geometry.slot_bytes))
        self.progress = Progress(self.slot)
        self.newcomer = Job(seed=2, replicas=replicas, own=own)
        self.sizes = {"unique": self.snapshot.extent.unique_bytes, "replica": self.snapshot.extent.replica_bytes}
        for name in self.sizes:
            self.progress.publish(name, Arrived(0, 0))

    def begin(self) -> Restoring:
        snapshot = self.snapshot
        return self.newcomer.state.begin_restore(snapshot.record, self.slot, snapshot.geometry, snapshot.extent)

    def arrive(self, attempt: int, share: float, garbage: int = 0) -> None:
        """Lets a share of each region arrive; all bytes are wrong by `garbage`."""
        for name, size in self.sizes.items():
            start, count = self.snapshot.geometry.offset(name), int(size * share)
            right = np.frombuffer(self.snapshot.slot[start : start + count], np.uint8)
            self.slot[start : start + count] = (right ^ np.uint8(garbage)).tobytes()
            self.progress.publish(name, Arrived(attempt, count))

    def load(self, restoring: Restoring) -> int:
        """Loads as much as has arrived."""
        count = 0
        while restoring.load.advance(self.progress):
            count += 1
        return count

    def check(self, restoring: Restoring) -> int:
        early_bytes = self.newcomer.state.finish_restore(restoring, self.progress)
        assert self.newcomer.state.digest() == self.digest
        assert self.newcomer.train(3) == self.expected
        return early_bytes

    @property
    def bulk_bytes(self) -> int:
        return sum(self.sizes.values())


@pytest.mark.parametrize("replicas", [(), REPLICAS], ids=["unique", "replica"])
def test_loaded_as_it_arrives(replicas, chunk_bytes):
    arrival = Arrival(replicas)
    restoring = arrival.begin()
    steps = []
    for share in (0.0, 0.3, 0.3, 0.9, 1.0):
        arrival.arrive(1, share)
        steps.append(arrival.load(restoring))
    assert steps[0] == steps[2] == 0  # nothing had arrived, and nothing new had
    if chunk_bytes < arrival.bulk_bytes // 4:
        assert steps[1] and steps[3] and steps[4]
    else:
        assert steps == [0, 0, 0, 0, sum(steps)]
    assert arrival.check(restoring) == arrival.bulk_bytes


def test_last_chunks_are_loaded_in_the_end():
    arrival = Arrival()
    restoring = arrival.begin()
    arrival.arrive(1, 0.5)
    arrival.load(restoring)
    arrival.arrive(1, 1.0)
    assert arrival.check(restoring) < arrival.bulk_bytes


def test_what_was_loaded_is_not_loaded_again():
    """This is the control of all other tests: at the end the slot holds garbage, and it is not read."""
    arrival = Arrival()
    restoring = arrival.begin()
    arrival.arrive(1, 1.0)
    arrival.load(restoring)
    arrival.arrive(1, 1.0, garbage=0xFF)
    assert arrival.check(restoring) == arrival.bulk_bytes


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("failed_share", [0.6, 1.0])
def test_another_attempt_after_garbage(failed_share, share, chunk_bytes):
    """The first source fails, midway or by its digest; the second one has sent `share` when Restore comes."""
    arrival = Arrival(REPLICAS)
    restoring = arrival.begin()
    arrival.arrive(8, failed_share, garbage=0xFF)
    arrival.load(restoring)
    arrival.arrive(9, share)
    arrival.load(restoring)
    arrival.arrive(9, 1.0)
    early_bytes = arrival.check(restoring)
    assert early_bytes <= share * arrival.bulk_bytes
    assert early_bytes > 0 or share < 1.0


def test_another_attempt_whose_begin_was_not_seen():
    arrival = Arrival()
    restoring = arrival.begin()
    arrival.arrive(1, 1.0, garbage=0xFF)
    arrival.load(restoring)
    arrival.arrive(2, 1.0)
    assert arrival.check(restoring) == 0


def test_one_region_again_and_the_other_not():
    """A holder sends one region, a replica the other: each region has its own attempts."""
    arrival = Arrival(REPLICAS, own=["first.weight"])
    assert min(arrival.sizes.values()) > 0
    restoring = arrival.begin()
    arrival.arrive(1, 1.0)
    start, size = arrival.snapshot.geometry.offset("replica"), arrival.sizes["replica"]
    arrival.slot[start : start + size] = bytes(size)
    arrival.load(restoring)
    arrival.slot[start : start + size] = arrival.snapshot.slot[start : start + size]
    arrival.progress.publish("replica", Arrived(2, size))
    assert arrival.check(restoring) == arrival.sizes["unique"]


def test_given_up_and_restored_from_another_slot():
    """A fence interrupts the load: the next one loads all of another version, over whatever there is."""
    arrival = Arrival()
    restoring = arrival.begin()
    arrival.arrive(1, 0.7, garbage=0xFF)
    arrival.load(restoring)
    arrival.newcomer.state.leave_restore()
    arrival.snapshot.restore(arrival.newcomer.state)
    assert arrival.newcomer.state.digest() == arrival.digest
    assert arrival.newcomer.train(3) == arrival.expected
