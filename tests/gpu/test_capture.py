"""Captures from a real device: to the bit, beside the next step, and without the host ever waiting."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from cuda_job import OPTIMIZERS, CudaJob, RegisteredSlot, registered_slot

from deadpool.snapshot.arena.slot import Arrived, Progress, clear_seal, read_seal
from deadpool.snapshot.copying import copying, cuda, cuda_lane

pytestmark = pytest.mark.gpu

A_WHILE = 200_000_000  # clock cycles: about a tenth of a second


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def step_beside_its_copy(job: CudaJob, slot: RegisteredSlot) -> bool:
    """As the trainer does it: boundary, step, and a thread that advances the copy. Whether it became whole."""
    boundary = job.state.mark()
    copy = slot.open(job.state)
    whole: list[bool] = []
    thread = threading.Thread(target=lambda: whole.append(copy.advance(lambda: False)))
    thread.start()
    job.backward()
    copy.commit()
    copy.hold()
    job.optimizer.step()
    boundary.wait()
    thread.join()
    return whole == [True]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rollback_and_takeover_continue_to_the_bit(kind):
    job = CudaJob(kind)
    job.train(3)
    with registered_slot(job.state) as slot:
        assert slot.open(job.state).advance(lambda: False)
        at_capture = job.state.digest()
        expected, after = job.train(3), job.state.digest()
        newcomer = CudaJob(kind, seed=2)
        newcomer.inputs = job.inputs
        for target in (job, newcomer):
            slot.restore(target.state)
            assert target.state.digest() == at_capture
            assert target.train(3) == expected
            assert target.state.digest() == after
        newcomer.state.release_slots()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_loaded_while_it_arrives_also_from_a_second_attempt(kind, monkeypatch):
    """The first attempt brings garbage and is loaded all the same; half of the second one comes before the end."""
    monkeypatch.setattr("deadpool.snapshot.copying.slot_load.CHUNK_BYTES", 1 << 20)
    job = CudaJob(kind)
    job.train(3)
    with registered_slot(job.state) as slot:
        assert slot.open(job.state).advance(lambda: False)
        assert slot.extent is not None
        digest, expected, size = job.state.digest(), job.train(3), slot.extent.unique_bytes
        newcomer, progress = CudaJob(kind, seed=2), Progress(slot.slot)
        newcomer.inputs = job.inputs
        start = slot.geometry.offset("unique")
        right = bytes(slot.slot[start : start + size])
        restoring = newcomer.state.begin_restore(slot.record, slot.slot, slot.geometry, slot.extent)
        for attempt, arrived, content in ((1, size, bytes(size)), (2, size // 2, right)):
            slot.slot[start : start + size] = content
            progress.publish("unique", Arrived(attempt, arrived))
            while restoring.load.advance(progress):
                pass
            newcomer.state.leave_restore()  # the device has read it: the slot may be written
        assert 0 < newcomer.state.finish_restore(restoring, progress) < size
        assert newcomer.state.digest() == digest
        assert newcomer.train(3) == expected
        newcomer.state.release_slots()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_copy_that_another_thread_opens_in_the_middle_of_the_step_is_of_the_boundary(kind):
    """Its slot came late, and memory that the script has freed since the boundary is not touched by it."""
    expected = CudaJob(kind).train(5)[2:]
    job = CudaJob(kind)  # the same model, and the same random numbers from here on
    job.train(2)
    with registered_slot(job.state) as slot:
        digest = job.state.digest()
        slot.take_record(job.state)
        whole: list[bool] = []
        losses = [job.backward()]  # the device works at it, and its memory is used again and again
        thread = threading.Thread(target=lambda: whole.append(slot.open_late(job.state).advance(lambda: False)))
        thread.start()
        thread.join()
        job.optimizer.step()
        losses += [job.step() for _ in range(2)]
        assert whole == [True] and [loss.item() for loss in losses] == expected
        slot.restore(job.state)
        assert job.state.digest() == digest


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_copy_beside_the_next_step_is_of_the_boundary(kind):
    job = CudaJob(kind)
    job.train(2)
    with registered_slot(job.state) as slot:
        digest = job.state.digest()
        torch.cuda._sleep(
            A_WHILE
        )  # the device is late: all of the copy is still to come when the optimizer is enqueued
        copy = slot.open(job.state)
        job.backward()
        copy.commit()
        copy.hold()
        job.optimizer.step()
        assert copy.advance(lambda: False)
        assert job.state.digest() != digest
        slot.restore(job.state)
        assert job.state.digest() == digest


def test_capture_thread_and_optimizer_issue_together():
    job = CudaJob(width=1 << 18)
    job.train(2)
    with registered_slot(job.state) as slot:
        for _ in range(5):
            digest = job.state.digest()
            assert step_beside_its_copy(job, slot)
            slot.restore(job.state)
            assert job.state.digest() == digest


def test_given_up_copy_leaves_the_slot_unsealed_and_the_state_alone(monkeypatch):
    monkeypatch.setattr(cuda_lane, "BATCH_BYTES", (64 << 20, 64 << 20))
    job = CudaJob(width=1 << 18)
    job.train(2)
    with registered_slot(job.state) as slot:
        torch.cuda._sleep(A_WHILE)
        copy = slot.open(job.state)
        clear_seal(slot.slot)
        asked: list[bool] = []

        def after_the_first() -> bool:
            asked.append(True)
            return len(asked) > 1

        assert not copy.advance(after_the_first)
        copy.hold()
        job.train(1)
        cost = copy.cost()
        assert read_seal(slot.slot) is None
        assert cost is not None and 0 < cost.copied_bytes < copy.nbytes


def test_steady_state_never_synchronises():
    job = CudaJob("fused", width=1 << 16)
    job.train(2)
    with registered_slot(job.state) as slot:
        assert step_beside_its_copy(job, slot)
        with no_synchronisation():
            assert step_beside_its_copy(job, slot)
            assert step_beside_its_copy(job, slot)


def test_a_read_of_the_script_does_not_wait_for_the_whole_copy():
    """A copy engine that has begun with a stream stays with it: one stream alone would keep every read waiting."""
    job = CudaJob(width=1 << 18)
    job.train(2)
    small = torch.ones((), device="cuda")
    shares = []
    with registered_slot(job.state) as slot:
        for _ in range(5):
            torch.cuda.synchronize()
            copy = slot.open(job.state)
            began = time.perf_counter()
            copy.commit()
            small.item()
            read_s = time.perf_counter() - began
            copy.await_end()
            shares.append(read_s / (time.perf_counter() - began))
    assert statistics.median(shares) < 0.5, shares


def test_control_synchronisation_is_noticed():
    with no_synchronisation(), pytest.raises(RuntimeError):
        torch.ones(1, device="cuda").item()


def test_boundary_is_seen_when_the_device_has_come_there():
    job = CudaJob()
    torch.cuda._sleep(20 * A_WHILE)  # the host looks before that, however busy it is
    boundary = job.state.mark()
    assert not boundary.done()
    boundary.wait()
    assert boundary.done()


def test_cost_is_measured_on_the_device():
    job = CudaJob(width=1 << 18)
    job.train(2)
    with registered_slot(job.state) as slot:
        copy = slot.open(job.state)
        copy.commit()
        copy.hold()
        job.optimizer.step()
        torch.cuda.synchronize()
        cost = copy.cost()
        assert cost is not None and cost.copied_bytes == copy.nbytes
        assert 0 < cost.stall_s <= cost.copy_s * 1.1
        assert cost.bytes_per_s > 1e9


@pytest.mark.parametrize("way", ["together", "one by one", "not gathered", "unregistered"])
def test_every_way_of_issuing_gives_the_same_bytes(way, monkeypatch):
    found = cuda.runtime()
    assert found is not None
    if way == "one by one":
        monkeypatch.setattr(found, "_issue_batch", None)
    if way == "not gathered":
        monkeypatch.setattr(copying, "STAGING_LIMIT_BYTES", 0)
    if way == "unregistered":
        monkeypatch.setattr(cuda.Runtime, "register", lambda *_: None)
        monkeypatch.setattr(cuda.Runtime, "unregister", lambda *_: None)
    job = CudaJob("capturable")
    job.train(2)
    with registered_slot(job.state) as slot:
        digest = job.state.digest()
        assert slot.open(job.state).advance(lambda: False)
        job.train(1)
        slot.restore(job.state)
        assert job.state.digest() == digest


def test_survivor_gets_its_buffers_back_from_the_device():
    job = CudaJob()
    job.train(2)
    record, digest = job.state.record(), job.state.digest()
    job.backward()
    assert job.state.digest() != digest
    job.state.restore_record(record)
    assert job.state.digest() == digest


def test_device_memory_is_counted_and_small():
    job = CudaJob("capturable")
    job.train(2)
    with registered_slot(job.state) as slot:
        slot.open(job.state).advance(lambda: False)
        assert 0 < job.state.device_bytes < 16 << 20
