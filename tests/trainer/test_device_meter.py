"""When a rank's device counts as waiting, and for how long it did. tests/gpu/test_waits_on_gpu.py asks a real one."""

from __future__ import annotations

import threading
import types

import pytest
import torch

from deadpool.backend.nccl_trace import EndedCollective
from deadpool.trainer import device_meter
from deadpool.trainer.device_meter import LOOK_EVERY_S, MEASURE_EVERY_S, DeviceMeter, seconds_per_step


class TraceTwin:
    """What the recorder would say; `in_collectives` are those that have begun and not ended."""

    def __init__(self) -> None:
        self.in_collectives: frozenset[int] = frozenset()
        self.past: list[EndedCollective] = []
        self.is_broken = False

    def is_available(self) -> bool:
        return True

    def started(self) -> frozenset[int]:
        if self.is_broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self.in_collectives

    def ended(self) -> list[EndedCollective]:
        return self.past


@pytest.fixture
def trace(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(device_meter, "runtime", lambda: types.SimpleNamespace(relax_capture_mode=lambda: None))
    return TraceTwin()


@pytest.fixture
def still():
    """The identity of a thread that stands still."""
    begun, over = threading.Event(), threading.Event()

    def stand() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=stand)
    thread.start()
    begun.wait()
    yield thread.ident
    over.set()
    thread.join()


def looks(meter, thread, count=4):
    return [meter.look(thread, number * LOOK_EVERY_S) for number in range(count)]


def test_collective_that_does_not_end(trace, still):
    trace.in_collectives = frozenset({7})
    assert looks(DeviceMeter(trace), still) == [False, False, True, True]


def test_device_that_computes_before_its_collective_does_not_wait(trace, still):
    assert not any(looks(DeviceMeter(trace), still))


def test_one_collective_after_another_is_no_wait(trace, still):
    meter = DeviceMeter(trace)
    for number in range(4):
        trace.in_collectives = frozenset({number})
        assert not meter.look(still, number * LOOK_EVERY_S)


def test_main_thread_that_moves_does_not_wait(trace):
    trace.in_collectives = frozenset({7})
    meter, me = DeviceMeter(trace), threading.get_ident()
    assert not meter.look(me, 0)
    assert not meter.look(me, LOOK_EVERY_S)
    assert not meter.look(me, 2 * LOOK_EVERY_S)
    assert not meter.look(me, 3 * LOOK_EVERY_S)


def test_broken_device_is_no_wait(trace, still):
    trace.is_broken = True
    assert not any(looks(DeviceMeter(trace), still))


def test_without_nccl_nothing_is_looked_at(still):
    assert not any(looks(DeviceMeter(), still))


def collectives(*starts_ns, group=0, seconds=0.1):
    return [EndedCollective(group, start, seconds) for start in starts_ns]


def test_time_in_collectives_of_whole_steps():
    ended = collectives(5, 15, 16, 25, 35, 45)  # the first one belongs to a step whose begin is not known
    assert seconds_per_step(ended, [10, 20, 30, 40]) == pytest.approx(0.3 / 2)  # the step from 30 may not have ended


def test_step_of_which_collectives_were_dropped_does_not_count():
    assert seconds_per_step(collectives(15, 16, 25, 35), [10, 20, 30, 40]) == pytest.approx(0.1)
    assert seconds_per_step(collectives(25, 35), [10, 20, 30, 40]) is None
    assert seconds_per_step([], [10, 20, 30, 40]) is None


def test_groups_run_at_once_so_the_busiest_counts():
    ended = [*collectives(9, 15, group=1), *collectives(16, seconds=0.4, group=2)]
    assert seconds_per_step(ended, [10, 20, 30]) == pytest.approx(0.4)


def test_past_steps_are_measured_now_and_then(trace, still, monkeypatch):
    meter, now_ns = DeviceMeter(trace), iter(range(10, 60, 10))
    monkeypatch.setattr(device_meter.time, "time_ns", lambda: next(now_ns))
    for _ in range(4):
        meter.begin_step()
    trace.past = collectives(5, 15, 25, 35)
    meter.look(still, 0.0)
    assert meter.wait_s_per_step is None
    meter.look(still, MEASURE_EVERY_S)
    assert meter.wait_s_per_step == pytest.approx(0.1)
