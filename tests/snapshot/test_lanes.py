"""The batches planned for a slot, the two threads that may issue them, and the prediction for a copy."""

from __future__ import annotations

import threading

import pytest
import torch
from device_twin import DeviceTwin
from state_job import Job, Snapshot, adamw
from test_state import Lazy, Odd
from waiting import LIMIT_S

from deadpool.snapshot.copying.copy_stats import CopyStats
from deadpool.snapshot.copying.slot_copy import SlotCopy
from deadpool.snapshot.state.state import ProtectedState


def cloning(job: Job) -> ProtectedState:
    """Protects the same objects, but clones their buffers like those on a device."""
    objects = {"model": job.model, "optimizer": job.optimizer, "scheduler": job.scheduler, "data": job.data}
    return ProtectedState(objects, replicas={}, rank=0, node_of=int, clone_host_buffers=True)


@pytest.mark.parametrize("make_model", [None, Odd, Lazy])
def test_cloned_buffers_come_back_to_the_bit(make_model):
    options = {"make_model": make_model} if make_model else {}
    job = Job(**options)
    job.state = cloning(job)
    job.train(3)
    snapshot, at_capture = Snapshot(job.state), job.state.digest()
    expected, after = job.train(4), job.state.digest()
    newcomer = Job(seed=2, **options)
    newcomer.state = cloning(newcomer)
    for target in (job, newcomer):
        snapshot.restore(target.state)
        assert target.state.digest() == at_capture
        assert target.train(4) == expected
        assert target.state.digest() == after


def test_survivor_gets_its_cloned_buffers_back():
    job = Job()
    job.state = cloning(job)
    job.train(2)
    record, digest = job.state.record(), job.state.digest()
    running_mean = job.model.norm.running_mean
    job.loss()
    assert job.state.digest() != digest
    job.state.restore_record(record)
    assert job.state.digest() == digest and job.model.norm.running_mean is running_mean


def test_survivor_of_two_faults_in_a_row_gets_the_buffers_it_was_restored_with():
    job = Job()
    job.state = cloning(job)
    job.train(2)
    snapshot, digest = Snapshot(job.state), job.state.digest()
    job.train(2)
    snapshot.restore(job.state)
    job.loss()
    job.state.restore_record(snapshot.record)
    assert job.state.digest() == digest


def test_newcomer_lays_its_state_out_as_the_snapshot_it_came_from():
    """Its first capture must fit the record that it was restored with."""
    job = Job(make_model=Lazy)
    job.state = cloning(job)
    job.train(4)
    job.state.record()
    snapshot, digest = Snapshot(job.state), job.state.digest()
    newcomer = Job(make_model=Lazy, seed=2)
    newcomer.state = cloning(newcomer)
    snapshot.restore(newcomer.state)
    again = Snapshot.__new__(Snapshot)
    again.geometry, again.extent, again.record = snapshot.geometry, snapshot.extent, snapshot.record
    again.slot = memoryview(bytearray(snapshot.slot))
    start = snapshot.geometry.offset("unique")
    again.slot[start:] = bytes(len(again.slot) - start)
    assert newcomer.state.copy_bulk(again.slot, again.geometry, cancelled=lambda: False)
    third = Job(make_model=Lazy, seed=3)
    third.state = cloning(third)
    again.restore(third.state)
    assert third.state.digest() == digest


def test_buffer_put_in_anew_each_step_keeps_plan_and_place():
    class Assigning(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.register_buffer("average", torch.zeros(8))

        def forward(self, x):
            self.average = 0.9 * self.average + 0.1 * x.mean(0)
            return self.linear(x)

    job = Job(make_model=Assigning)
    job.state = cloning(job)
    job.train(1)
    job.state.record()
    bulk = job.state._bulk
    job.train(1)
    snapshot, digest = Snapshot(job.state), job.state.digest()
    assert job.state._bulk is bulk
    job.train(1)
    snapshot.restore(job.state)
    assert job.state.digest() == digest


def test_small_tensors_of_a_kind_lie_side_by_side():
    job = Job()
    job.train(1)
    job.state.record()
    entries = job.state._bulk.layout.entries
    scalars = [entry.key[3] for entry in entries if entry.shape == ()]
    tail = [entry.key[3] for entry in entries[-len(scalars) :]]
    assert set(tail) == {"step"} and len(tail) == len(scalars)


def count_batches(job: Job) -> int:
    geometry = job.state.measure()
    job.state.copy_bulk(memoryview(bytearray(geometry.slot_bytes)), geometry, cancelled=lambda: False)
    (planned,) = job.state._copier._planned.values()
    return sum(len(batches) for batches in planned.values())


def test_number_of_batches_does_not_grow_with_that_of_small_tensors():
    def layers(count):
        return lambda: torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(count)))

    few, many = Job(make_model=layers(2)), Job(make_model=layers(40))
    few.train(1), many.train(1)
    assert count_batches(few) == count_batches(many)


def twin_copy(window_s: float = 0.0) -> tuple[Job, DeviceTwin, SlotCopy]:
    job, twin = Job(adamw), DeviceTwin(window_s=window_s)
    job.train(1)
    objects = {"model": job.model, "optimizer": job.optimizer}
    job.state = ProtectedState(objects, replicas={}, rank=0, node_of=int, make_lane=lambda _: twin)
    geometry = job.state.measure()
    return job, twin, job.state.open_copy(memoryview(bytearray(geometry.slot_bytes)), geometry)


def test_prediction_for_a_copy_that_has_not_begun():
    _, twin, copy = twin_copy(window_s=3.0)
    assert copy.predict_stall_s() == 0.0  # nothing was measured yet, so a copy is tried
    twin.stats.note_copy(copy.nbytes, 5.0)
    assert copy.predict_stall_s() == pytest.approx(2.0)
    twin.stats.note_copy(copy.nbytes, 1.0)
    assert copy.predict_stall_s() == 0.0


def test_prediction_for_a_copy_that_is_done():
    _, twin, copy = twin_copy()
    twin.stats.note_copy(copy.nbytes, 5.0)
    assert copy.advance(lambda: False)
    assert copy.predict_stall_s() == 0.0


def test_given_up_copy_issues_nothing_more_and_ends_with_what_is_in_flight(monkeypatch):
    monkeypatch.setattr("deadpool.snapshot.copying.lanes.MOVE_BYTES", 64)
    _, twin, copy = twin_copy()
    twin.copying = False
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(copy.advance(lambda: False)))
    thread.start()
    while len(twin.issued) < 2:
        threading.Event().wait(0.001)
    copy.give_up()
    issued = len(twin.issued)
    thread.join(0.1)
    assert thread.is_alive()  # the device still writes
    twin.copy()
    thread.join(LIMIT_S)
    assert results == [False] and len(twin.issued) == issued


def test_both_threads_issue_and_every_batch_goes_once(monkeypatch):
    monkeypatch.setattr("deadpool.snapshot.copying.lanes.MOVE_BYTES", 64)
    _, twin, copy = twin_copy()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(copy.advance(lambda: False)))
    thread.start()
    copy.commit()
    thread.join(LIMIT_S)
    assert results == [True] and sum(twin.issued) == copy.nbytes


def test_batch_that_cannot_be_issued_leaves_the_copy_torn(monkeypatch):
    _, twin, copy = twin_copy()

    def refuse(*_: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(twin, "enqueue", refuse)
    with pytest.raises(RuntimeError):
        copy.commit()
    monkeypatch.undo()
    assert not copy.advance(lambda: False)


def test_copy_stats_predict_the_best_speed_and_the_shortest_window():
    stats = CopyStats()
    assert stats.copy_s(100) == 0.0 and stats.window_s == 0.0
    for seconds in (2.0, 1.0, 4.0):
        stats.note_copy(100, seconds)
        stats.note_window(seconds)
    assert stats.copy_s(200) == 2.0 and stats.window_s == 1.0
