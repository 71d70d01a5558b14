"""The lane of a CUDA device, run on host memory: streams and events are twins that note who waits for whom.

Everything is done when it is enqueued, so this shows which bytes go where, and that the waits are there; that a device
keeps to them is shown by tests/gpu.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from state_job import Job, adamw
from test_cuda_calls import LibraryTwin
from test_state import Odd

from deadpool.errors import DeviceError
from deadpool.snapshot.copying import cuda as cuda_aside
from deadpool.snapshot.copying import cuda_lane
from deadpool.snapshot.copying.cuda import Runtime
from deadpool.snapshot.copying.cuda_lane import CudaLane
from deadpool.snapshot.copying.slot_copy import SlotCopy
from deadpool.snapshot.state.state import ProtectedState

CLOCK = itertools.count(1)


class EventTwin:
    def __init__(self, **_: Any) -> None:
        self.stream: StreamTwin | None = None
        self.at = 0

    def record(self, stream: StreamTwin) -> None:
        self.stream, self.at = stream, next(CLOCK)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, other: EventTwin) -> float:
        return float(other.at - self.at)


class StreamTwin:
    def __init__(self, device: Any = None) -> None:
        self.cuda_stream = 77 if device is not None else 1
        self.waits: list[tuple[StreamTwin | None, int, int]] = []  # (for which stream, until when, since when)

    def wait_event(self, event: EventTwin) -> None:
        self.waits.append((event.stream, event.at, next(CLOCK)))

    def wait_stream(self, other: StreamTwin) -> None:
        self.waits.append((other, next(CLOCK), next(CLOCK)))


class CudaTwin:
    """What the lane calls of torch.cuda, and the copies that went through the runtime."""

    Stream, Event, OutOfMemoryError = StreamTwin, EventTwin, torch.OutOfMemoryError

    def __init__(self) -> None:
        self.main = StreamTwin()
        self.free, self.total = 1 << 40, 1 << 40
        self.copies: list[tuple[int, int]] = []  # (stream, when)

    def get_device_properties(self, _: Any) -> Any:
        return types.SimpleNamespace(memory_clock_rate=1_000_000, memory_bus_width=4096)

    def current_stream(self, _: Any) -> StreamTwin:
        return self.main

    def mem_get_info(self, _: Any) -> tuple[int, int]:
        return self.free, self.total

    def synchronize(self, _: Any) -> None:
        return None

    @contextlib.contextmanager
    def device(self, _: Any) -> Iterator[None]:
        yield

    stream = device


class NotedRuntime(Runtime):
    def __init__(self, twin: CudaTwin) -> None:
        super().__init__(LibraryTwin(12080))  # type: ignore[arg-type]
        self._twin = twin

    def issue(self, addresses: Any, stream: int, *, to_host: bool) -> None:
        self._twin.copies.append((stream, next(CLOCK)))
        super().issue(addresses, stream, to_host=to_host)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaTwin:
    twin = CudaTwin()
    torch_twin = types.SimpleNamespace(**{**vars(torch), "cuda": twin})
    found = NotedRuntime(twin)
    for module in (cuda_lane, cuda_aside):
        monkeypatch.setattr(module, "torch", torch_twin)
    monkeypatch.setattr(cuda_lane, "runtime", lambda: found)
    monkeypatch.setattr(cuda_lane, "BATCH_BYTES", (256, 256))
    monkeypatch.setattr(cuda_lane, "TURN_BYTES", 128)
    return twin


class Case:
    def __init__(self, limit_bytes: int = 1 << 30, staging_bytes: int = 1 << 20, **options: Any) -> None:
        self.job = Job(adamw, **options)
        self.job.train(2)
        self.lane = CudaLane(torch.device("cpu"), staging_bytes, limit_bytes)
        objects = {"model": self.job.model, "optimizer": self.job.optimizer}
        self.state = ProtectedState(
            objects, replicas={}, rank=0, node_of=int, make_lane=lambda _: self.lane, clone_host_buffers=True
        )
        self.geometry = self.state.measure()
        self.slot = memoryview(bytearray(self.geometry.slot_bytes))

    def open(self) -> SlotCopy:
        record = self.state.record()
        self.extent, self.digest = self.state.extent(record), self.state.digest()
        start = self.geometry.offset("record")
        self.slot[start : start + len(record)] = record
        copy = self.state.open_copy(self.slot, self.geometry)
        self.lane.stats.note_copy(1, 1.0)
        return copy

    def restored(self) -> str:
        self.state.restore(self.slot, self.geometry, self.extent)
        return self.state.digest()


@pytest.mark.parametrize("staging_bytes", [1 << 20, 0], ids=["gathered", "not gathered"])
@pytest.mark.parametrize("make_model", [None, Odd])
def test_snapshot_is_of_the_boundary_although_the_optimizer_overwrites(cuda, staging_bytes, make_model):
    case = Case(staging_bytes=staging_bytes, **({"make_model": make_model} if make_model else {}))
    for _ in range(3):
        copy = case.open()
        assert copy.set_aside() > copy.nbytes // 4
        copy.hold()
        case.job.train(1)
        case.state.record()
        assert copy.advance(lambda: False) and case.state.digest() != case.digest
        assert case.restored() == case.digest
        cost = copy.cost()
        assert cost is not None and cost.copied_bytes == copy.nbytes and cost.stall_s > 0


def test_script_waits_for_what_was_issued_and_copies_of_clones_wait_for_the_clones(cuda):
    case = Case()
    copy = case.open()
    side = case.lane._stream
    copy.set_aside()
    issued = [at for stream, at in cuda.copies if stream == side.cuda_stream]
    cloned = [at for stream, at in cuda.copies if stream == cuda.main.cuda_stream]
    assert issued and cloned and max(issued) < min(cloned)
    waits_for_live = [until for stream, until, since in cuda.main.waits if stream is side and since < min(cloned)]
    assert max(waits_for_live) > max(issued)
    assert copy.advance(lambda: False)
    stored = [at for stream, at in cuda.copies if stream == side.cuda_stream and at > max(cloned)]
    waits_for_clones = [until for stream, until, since in side.waits if stream is cuda.main and since < min(stored)]
    assert max(waits_for_clones) > max(cloned)


def test_other_stream_of_the_script_waits_for_the_clones_only(cuda):
    case = Case()
    copy = case.open()
    copy.set_aside()
    first, cuda.main = cuda.main, StreamTwin()
    cuda.main.cuda_stream = 2
    copy.hold()
    assert [stream for stream, _, _ in cuda.main.waits] == [first]
    assert copy.advance(lambda: False)


def test_memory_is_bounded_by_the_limit_and_by_what_is_free(cuda):
    case = Case(limit_bytes=512)
    copy = case.open()
    assert 0 < copy.set_aside() <= 512
    assert copy.advance(lambda: False) and case.restored() == case.digest
    cuda.free = cuda.total // 25  # less than a twentieth
    assert Case().open().predict_aside_s() is None


def test_one_copy_at_a_time_has_the_memory(cuda):
    case = Case()
    first = case.open()
    first.set_aside()
    assert case.open().predict_aside_s() is None
    assert first.advance(lambda: False)
    assert case.open().predict_aside_s() is not None


def test_lack_of_memory_gives_the_copy_up_and_is_remembered(cuda, monkeypatch):
    case = Case()
    copy = case.open()

    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(cuda_aside.torch, "empty", refuse)
    with pytest.raises(DeviceError, match="none left"):
        copy.set_aside()
    assert not copy.advance(lambda: False)
    assert case.open().predict_aside_s() is None


def test_device_memory_is_counted(cuda):
    case = Case()
    copy = case.open()
    before = case.state.device_bytes
    copy.set_aside()
    assert case.state.device_bytes >= before + (64 << 20)
    assert copy.advance(lambda: False)
    case.state.release_slots()
    assert case.lane.device_bytes == 0
