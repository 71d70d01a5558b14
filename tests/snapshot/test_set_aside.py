"""Copies whose rest is cloned before the optimizer writes, and copied from the clones afterwards."""

from __future__ import annotations

import threading

import pytest
from device_twin import DeviceTwin
from state_job import Job, adamw
from waiting import LIMIT_S

from deadpool.snapshot.copying.lanes import HostLane
from deadpool.snapshot.copying.slot_copy import SlotCopy
from deadpool.snapshot.state.state import ProtectedState

PLENTY = 1 << 40


class Slot:
    """A job beside a device twin, and one copy of its state that has begun."""

    def __init__(self, twin: DeviceTwin, steps: int = 2) -> None:
        self.twin, self.job = twin, Job(adamw)
        self.job.train(steps)
        objects = {"model": self.job.model, "optimizer": self.job.optimizer}
        options = {"make_lane": lambda _: twin, "clone_host_buffers": True}
        self.job.state = ProtectedState(objects, replicas={}, rank=0, node_of=int, **options)
        self.geometry = self.job.state.measure()
        self.memory = memoryview(bytearray(self.geometry.slot_bytes))
        self.copy = self.open()

    def open(self) -> SlotCopy:
        self.record = self.job.state.record()
        self.extent = self.job.state.extent(self.record)
        self.digest = self.job.state.digest()
        start = self.geometry.offset("record")
        self.memory[start : start + len(self.record)] = self.record
        return self.job.state.open_copy(self.memory, self.geometry)

    def overwrite(self) -> None:
        """As the script does: a step, and the boundary after it, which clones buffers anew."""
        self.job.train(1)
        self.job.state.record()
        assert self.job.state.digest() != self.digest

    def restored(self) -> str:
        self.job.state.restore(self.memory, self.geometry, self.extent)
        return self.job.state.digest()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deadpool.snapshot.copying.lanes.MOVE_BYTES", 64)


@pytest.mark.parametrize("issued", [0, 1, 2, 5])
def test_copy_is_of_the_boundary_although_the_optimizer_overwrites(small_pieces, issued):
    slot = Slot(DeviceTwin(aside_bytes=PLENTY))
    slot.twin.stats.note_copy(1, 1.0)  # a byte per second: nothing more can be copied in time
    for batch in slot.copy._shares[0].batches[:issued]:
        slot.copy._shares[0].copy.issue(batch)
        slot.copy._shares[0].next += 1
    rest = sum(batch.nbytes for batch in slot.copy._shares[0].batches[max(1, issued) :])
    assert slot.copy.set_aside() == rest > 0
    slot.copy.hold()
    slot.overwrite()
    assert slot.copy.advance(lambda: False)
    assert slot.restored() == slot.digest


def test_control_copy_that_goes_on_without_clones_is_torn(small_pieces):
    slot = Slot(DeviceTwin(aside_bytes=PLENTY))
    share = slot.copy._shares[0]
    share.copy.issue(share.batches[0])
    share.next = 1
    slot.overwrite()
    assert slot.copy.advance(lambda: False)
    assert slot.restored() != slot.digest


def test_what_can_be_copied_in_time_is_copied_and_only_the_rest_is_set_aside(small_pieces):
    slot = Slot(DeviceTwin(window_s=1.0, aside_bytes=PLENTY))
    slot.twin.stats.note_copy(slot.copy.nbytes // 2, 1.0)  # half of it fits before the optimizer
    assert slot.copy.predict_stall_s() == pytest.approx(1.0, rel=0.1)
    assert slot.copy.predict_aside_s() < 1e-3
    aside = slot.copy.set_aside()
    assert 0.4 < aside / slot.copy.nbytes < 0.6
    assert sum(slot.twin.issued) == slot.copy.nbytes - aside
    slot.overwrite()
    assert slot.copy.advance(lambda: False)
    assert slot.restored() == slot.digest


def test_little_room_leaves_a_part_of_the_wait(small_pieces):
    slot = Slot(DeviceTwin())
    slot.twin.stats.note_copy(slot.copy.nbytes, 10.0)
    assert slot.copy.predict_aside_s() is None  # no room at all
    slot.twin.aside_bytes = slot.copy.nbytes // 4
    assert 7.4 < slot.copy.predict_aside_s() < 9.0 < slot.copy.predict_stall_s()
    assert 0 < slot.copy.set_aside() <= slot.twin.aside_bytes
    slot.overwrite()
    assert slot.copy.advance(lambda: False)
    assert slot.restored() == slot.digest


def test_room_is_taken_until_the_last_clone_is_copied(small_pieces):
    slot = Slot(DeviceTwin(aside_bytes=PLENTY))
    slot.twin.stats.note_copy(1, 1.0)
    slot.twin.copying = False
    slot.copy.set_aside()
    assert slot.copy.predict_left_s() > 0
    second = slot.open()
    assert second.predict_aside_s() is None
    slot.twin.copying = True
    assert slot.copy.advance(lambda: False)
    assert second.predict_aside_s() is not None and slot.copy.predict_left_s() == 0.0


def test_given_up_among_the_clones_ends_with_what_is_in_flight(small_pieces):
    slot = Slot(DeviceTwin(aside_bytes=PLENTY))
    slot.twin.stats.note_copy(1, 1.0)
    slot.copy.set_aside()
    slot.twin.copying = False
    before = len(slot.twin.issued)
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(slot.copy.advance(lambda: False)))
    thread.start()
    while len(slot.twin.issued) < before + 2:
        threading.Event().wait(0.001)
    slot.copy.give_up()
    issued = len(slot.twin.issued)
    slot.twin.copy()
    thread.join(LIMIT_S)
    assert results == [False] and len(slot.twin.issued) == issued
    assert slot.twin.aside_room() == PLENTY


def test_commit_copies_at_once_what_was_set_aside(small_pieces):
    slot = Slot(DeviceTwin(aside_bytes=PLENTY))
    slot.twin.stats.note_copy(1, 1.0)
    slot.copy.set_aside()
    slot.overwrite()
    slot.copy.commit()
    assert slot.copy.advance(lambda: False)
    assert slot.restored() == slot.digest


def test_clone_that_fails_leaves_the_copy_torn(small_pieces, monkeypatch):
    slot = Slot(DeviceTwin(aside_bytes=PLENTY))
    slot.twin.stats.note_copy(1, 1.0)
    monkeypatch.setattr(slot.twin, "flush", lambda: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.raises(RuntimeError):
        slot.copy.set_aside()
    assert not slot.copy.advance(lambda: False)


def test_both_threads_at_once_copy_everything_once(small_pieces):
    for _ in range(20):
        slot = Slot(DeviceTwin(aside_bytes=PLENTY), steps=1)
        slot.twin.stats.note_copy(1, 1.0)
        results: list[bool] = []
        thread = threading.Thread(target=lambda slot=slot, to=results: to.append(slot.copy.advance(lambda: False)))
        thread.start()
        slot.copy.set_aside()
        slot.overwrite()
        thread.join(LIMIT_S)
        assert results == [True] and sum(slot.twin.issued) == slot.copy.nbytes
        assert slot.restored() == slot.digest


def test_host_memory_is_never_set_aside():
    """To clone it takes as long as to copy it."""
    assert HostLane().aside_room() == 0
