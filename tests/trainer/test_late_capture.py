"""A version that finds no free slot at its boundary: its capture begins when one is free, while its state lasts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capture_bench import CaptureBench
from device_twin import DeviceTwin
from test_late_device import in_thread, poor_budget
from waiting import LIMIT_S

from deadpool.protocol.causes import Miss
from deadpool.protocol.messages import Captured, Missed


@pytest.fixture
def make_bench(make_bench: Callable[..., CaptureBench]) -> Callable[..., CaptureBench]:
    def make(twin: DeviceTwin) -> CaptureBench:
        """Version 0 is captured, version 1 is reached, and no slot is left for it."""
        bench = make_bench(twin, granted=1)
        bench.await_said(Captured, 1)
        bench.step()
        return bench

    return make


def test_slot_that_comes_in_the_middle_of_the_step_is_filled_with_the_state_of_the_boundary(make_bench, twin):
    bench = make_bench(twin)
    digest = bench.job.digest()
    with torch.no_grad():
        bench.model[1].running_mean.fill_(7.0)  # forward goes on: it writes buffers, whose clones are copied
    bench.session.grant(1)
    captured = bench.await_said(Captured, 2)[1]
    assert bench.captured() == [0, 1] and bench.missed() == []
    bench.restore(captured)
    assert bench.job.digest() == digest


def test_nothing_is_said_to_be_missed_before_the_optimizer_steps(make_bench, twin):
    bench = make_bench(twin)
    assert bench.missed() == []
    bench.train()
    (missed,) = bench.session.of_kind(Missed)
    assert (missed.number, missed.cause, missed.stall_s) == (1, Miss.NO_SLOT, None)


def test_slot_that_comes_after_the_optimizer_is_for_the_next_version(make_bench, twin):
    bench = make_bench(twin)
    bench.train()
    bench.session.grant(1)
    bench.end_step()
    bench.await_said(Captured, 2)
    assert bench.captured() == [0, 2] and bench.missed() == [1]


def test_step_without_an_optimizer_misses_the_version_at_its_end(make_bench, twin):
    bench = make_bench(twin)
    bench.end_step()
    assert bench.missed() == [1]


def test_rank_that_waits_for_a_slot_comes_to_rest_under_a_fence(make_bench, twin):
    bench = make_bench(twin)
    bench.session.halt()
    bench.job.capturer.cancel()
    bench.session.grant(1)
    assert bench.captured() == [0] and bench.missed() == [], "what a fence ended is not missed"
    assert bench.session.core.rest().clean


def test_rank_that_is_done_with_its_steps_does_not_wait_for_a_slot(make_bench, twin):
    bench = make_bench(twin)
    bench.job.capturer.finish()
    assert bench.missed() == [1]


def test_host_does_not_wait_for_a_device_that_has_not_come_to_the_boundary(make_bench, twin):
    """The copying thread waits for the device, so it does not hear of the slot; the main thread goes on at once."""
    bench = make_bench(twin)
    bench.train()
    twin.computing = True
    bench.end_step()
    settled = in_thread(bench.job.capturer.settle)
    settled.join(LIMIT_S)
    assert not settled.is_alive() and bench.missed() == [1, 2]


def test_copy_that_had_no_time_left_is_missed_for_want_of_a_slot_not_of_speed(make_bench, twin, monkeypatch):
    """What it would have made the optimizer wait says nothing about captures that begin in time."""
    monkeypatch.setattr("deadpool.snapshot.copying.lanes.MOVE_BYTES", 64)
    bench = make_bench(twin)
    twin.stats.note_copy(1, 1.0)  # a byte per second
    twin.copying = False
    bench.job.budget = poor_budget()
    bench.session.grant(1)
    twin.await_queued()
    bench.job.capturer.settle()
    twin.copy()
    (missed,) = bench.await_said(Missed, 1)
    assert (missed.number, missed.cause, missed.stall_s) == (1, Miss.NO_SLOT, None)


def test_script_that_writes_before_its_optimizer_is_not_captured_late(make_bench, twin):
    bench = make_bench(twin)
    bench.session.grant(1)
    bench.await_said(Captured, 2)
    twin.copying = False
    bench.session.grant(1)
    bench.step()
    bench.train_freely()  # the copy of version 2 is torn: from now on versions are copied at once, or not at all
    bench.optimizer.step()
    twin.copy()
    bench.await_said(Missed, 1)  # its slot is free again
    bench.end_step()
    bench.job.capturer.finish()
    assert bench.captured() == [0, 1, 3]
    bench.step()
    assert bench.missed() == [2, 4], "no slot at the boundary, and none is waited for"
