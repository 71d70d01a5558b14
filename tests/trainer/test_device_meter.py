"""When a rank's device counts as waiting, and for how long it did. tests/gpu/test_waits_on_gpu.py asks a real one."""

from __future__ import annotations

import types

import pytest
import torch

from deadpool.backend.nccl_communicators import Collective
from deadpool.trainer.capture import meters
from deadpool.trainer.capture.meters import LOOK_EVERY_S, MEASURE_EVERY_S, DeviceMeter, seconds_per_step


def collective(number, *, started=True, pair=False, enqueued_ns=0, seconds=None, group=0):
    return Collective(number, group, enqueued_ns, started, pair, seconds)


class TraceTwin:
    def __init__(self) -> None:
        self.now: list[Collective] = []
        self.past: list[Collective] = []
        self.error: Exception | None = None

    def is_available(self) -> bool:
        return True

    def pending(self, since_ns: int) -> list[Collective]:
        if self.error is not None:
            raise self.error
        return [each for each in self.now if each.enqueued_ns >= since_ns]

    def ended(self, since_ns: int) -> list[Collective]:
        return [each for each in self.past if each.enqueued_ns >= since_ns]


class Clock:
    """Seconds, as the meter gets them; time_ns() is the same clock."""

    now = 1000.0

    def time_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(meters, "time", clock)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(meters, "runtime", lambda: types.SimpleNamespace(relax_capture_mode=lambda: None))
    return clock


@pytest.fixture
def trace():
    return TraceTwin()


def looks(meter, clock, count=5):
    found = []
    for _ in range(count):
        clock.now += LOOK_EVERY_S
        found.append(meter.look(clock.now))
    return found


def begun(trace):
    meter = DeviceMeter(trace)
    meter.begin_step()
    return meter


def test_collective_that_does_not_end(trace, clock):
    meter = begun(trace)
    trace.now = [collective(7, enqueued_ns=clock.time_ns()), collective(8, started=False, enqueued_ns=clock.time_ns())]
    assert looks(meter, clock) == [False, True, True, True, True]
    meter.begin_step()
    assert not any(looks(meter, clock, 1)), "another step has begun"


def test_device_that_computes_before_its_collective_does_not_wait(trace, clock):
    trace.now = [collective(7, started=False)]
    assert not any(looks(begun(trace), clock))


def test_one_collective_after_another_is_no_wait(trace, clock):
    meter = begun(trace)
    for number in range(4):
        trace.now = [collective(number)]
        assert looks(meter, clock, 1) == [False]


def test_host_that_enqueues_more_does_not_wait(trace, clock):
    """As one that evaluates, while a collective waits for its peers."""
    meter = begun(trace)
    for number in range(4):
        trace.now.append(collective(number))
        assert looks(meter, clock, 1) == [False]


def test_receive_that_a_pipeline_has_enqueued_early_is_no_wait(trace, clock):
    trace.now = [collective(1, pair=True), collective(2, started=False)]
    assert not any(looks(begun(trace), clock))
    trace.now = [collective(1, pair=True)]
    assert looks(begun(trace), clock)[-1], "nothing else is to be done"


def test_aborted_communicators_do_not_count(trace, clock):
    trace.now = [collective(1, enqueued_ns=clock.time_ns() - 1)]
    meter = DeviceMeter(trace)
    meter.restart()
    meter.begin_step()
    assert not any(looks(meter, clock))


@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), KeyError("record_id")])
def test_recorder_that_cannot_be_read_is_left_alone(trace, clock, error, capsys):
    meter, trace.error = begun(trace), error
    assert not any(looks(meter, clock))
    assert capsys.readouterr().err.count("flight recorder cannot be read") == 1
    assert meter.wait_s(0.5) == 0.5


def test_without_nccl_nothing_is_looked_at():
    meter = DeviceMeter()
    meter.begin_step()
    assert not meter.look(0.0) and meter.wait_s(0.5) == 0.5


S = 1_000_000_000


def past(*starts, group=0, seconds=0.1):
    return [collective(0, enqueued_ns=int(start * S), seconds=seconds, group=group) for start in starts]


def steps(*begins):
    return [int(begin * S) for begin in begins]


def test_time_in_collectives_of_whole_steps():
    ended = past(0.5, 1.5, 1.6, 2.5, 3.5, 4.5)  # the first one belongs to a step whose begin is not known
    assert seconds_per_step(ended, steps(1, 2, 3, 4)) == pytest.approx((0.2 + 0.1) / 2)  # step 3 may not have ended


def test_step_of_which_collectives_were_dropped_does_not_count():
    assert seconds_per_step(past(1.5, 1.6, 2.5, 3.5), steps(1, 2, 3, 4)) == pytest.approx(0.1)
    assert seconds_per_step(past(2.5, 3.5), steps(1, 2, 3, 4)) is None
    assert seconds_per_step([], steps(1, 2, 3, 4)) is None


def test_groups_run_at_once_so_the_busiest_counts():
    ended = [*past(0.9, 1.5, group=1), *past(1.6, seconds=0.4, group=2)]
    assert seconds_per_step(ended, steps(1, 2, 3)) == pytest.approx(0.4)


def test_one_long_wait_does_not_move_the_figure():
    """An evaluation of rank 0, for which all others wait."""
    ended = [*past(0.5, 1.5, 2.5), *past(3.5, seconds=60.0), *past(64.5, 65.5, 66.5)]
    assert seconds_per_step(ended, steps(1, 2, 3, 64, 65, 66, 67)) == pytest.approx(0.1)


def test_host_and_device_are_not_compared(trace, clock):
    meter = DeviceMeter(trace)
    assert meter.wait_s(0.5) is None, "not measured yet"
    trace.past = past(*(clock.now - 0.5 + number for number in range(9)))
    for _ in range(9):
        meter.begin_step()
        clock.now += 1.0
    meter.look(clock.now)
    assert meter.wait_s(0.5) is None
    meter.look(clock.now + MEASURE_EVERY_S)
    assert meter.wait_s(0.5) == pytest.approx(0.1)
    meter.restart()
    assert meter.wait_s(0.5) is None, "after a recovery, as in a fresh process"


def test_job_without_nccl_is_measured_by_its_host(trace, clock):
    meter = begun(trace)
    meter.look(clock.now)
    meter.look(clock.now + MEASURE_EVERY_S)
    assert meter.wait_s(0.5) == 0.5
