"""Captures whose rest is cloned on a real device before the optimizer: to the bit, and without the host waiting."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from cuda_job import OPTIMIZERS, CudaJob, registered_slot
from test_capture import no_synchronisation

from deadpool.errors import DeviceError
from deadpool.snapshot.copying import cuda_lane
from deadpool.snapshot.copying.copy_stats import CopyStats
from deadpool.snapshot.copying.copying import make_lane
from deadpool.snapshot.copying.cuda import Aside
from deadpool.snapshot.copying.slot_copy import SlotCopy

pytestmark = pytest.mark.gpu

LIMIT_BYTES = 1 << 30


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(cuda_lane, "BATCH_BYTES", (1 << 20, 1 << 20))
    monkeypatch.setattr(cuda_lane, "TURN_BYTES", 256 << 10)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def job_with_room(kind: str = "fused", limit_bytes: int = LIMIT_BYTES, **options: int) -> CudaJob:
    job = CudaJob(kind, make_lane=functools.partial(make_lane, aside_limit_bytes=limit_bytes), **options)
    job.train(2)
    return job


def make_slow(copy: SlotCopy) -> None:
    """A byte per second, as far as the prediction knows: it goes by the fastest copy, so earlier ones are forgotten."""
    for share in copy._shares:
        share.lane.stats = CopyStats()
        share.lane.stats.note_copy(1, 1.0)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_snapshot_is_of_the_boundary_although_the_optimizer_overwrites(kind):
    job = job_with_room(kind)
    with registered_slot(job.state) as slot:
        for _ in range(3):  # the memory is used again
            digest = job.state.digest()
            copy = slot.open(job.state)
            make_slow(copy)
            job.backward()
            aside = copy.set_aside()
            assert aside > copy.nbytes // 2
            copy.hold()
            job.optimizer.step()
            job.train(2)
            assert copy.advance(lambda: False)
            job.train(1)
            slot.restore(job.state)
            assert job.state.digest() == digest
            job.train(1)
            torch.cuda.synchronize()
            assert copy.cost() is not None


def test_setting_aside_never_synchronises():
    job = job_with_room()
    with registered_slot(job.state) as slot:
        for quiet in (False, True, True):
            copy = slot.open(job.state)
            make_slow(copy)
            job.backward()
            if quiet:
                with no_synchronisation():
                    assert copy.set_aside() > copy.nbytes // 2
                    copy.hold()
                    job.optimizer.step()
            else:
                copy.set_aside()
                copy.hold()
                job.optimizer.step()
            assert copy.advance(lambda: False)


def test_optimizer_on_another_stream_waits_for_the_clones():
    job = job_with_room(width=1 << 16)
    other = torch.cuda.Stream()
    with registered_slot(job.state) as slot:
        digest = job.state.digest()
        copy = slot.open(job.state)
        make_slow(copy)
        job.backward()
        torch.cuda._sleep(200_000_000)  # the clones come late
        assert copy.set_aside() > copy.nbytes // 2
        with torch.cuda.stream(other):
            copy.hold()
            job.optimizer.step()
        assert copy.advance(lambda: False)
        torch.cuda.synchronize()
        slot.restore(job.state)
        assert job.state.digest() == digest


def test_without_a_limit_set_nothing_is_set_aside():
    job = job_with_room(limit_bytes=0)
    with registered_slot(job.state) as slot:
        copy = slot.open(job.state)
        make_slow(copy)
        assert copy.predict_aside_s() is None
        copy.commit()
        assert copy.advance(lambda: False)


def test_room_is_bounded_by_what_the_device_has_free_and_a_failure_is_told():
    device = torch.device("cuda", torch.cuda.current_device())
    aside = Aside(device, 1 << 50)
    free, _ = torch.cuda.mem_get_info(device)
    assert 0 < aside.room() < free
    with pytest.raises(DeviceError, match="no device memory"):
        aside.take(1 << 45)
    assert aside.room() == 0
    aside.release()
    assert aside.room() > 0


def test_clones_outlive_a_change_of_the_plan():
    """Other tensors are captured from now on: the lane lets go of its memory while clones are still copied."""
    job = job_with_room()
    with registered_slot(job.state) as slot:
        digest = job.state.digest()
        copy = slot.open(job.state)
        make_slow(copy)
        job.backward()
        assert copy.set_aside() > copy.nbytes // 2
        copy.hold()
        job.optimizer.step()
        job.state.release_slots()
        filled = [torch.full((16 << 20,), 7, dtype=torch.uint8, device="cuda") for _ in range(64)]
        assert copy.advance(lambda: False)
        slot.restore(job.state)
        assert job.state.digest() == digest and filled
