"""Captures beside a device that is late: what is declared, what is given up, how far the host runs ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from capture_bench import FIRST, CaptureBench
from device_twin import DeviceTwin
from waiting import LIMIT_S

from deadpool.errors import Unwind
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Captured, Missed, Stepped
from deadpool.snapshot.arena.slot import read_seal
from deadpool.trainer.capture.capture import Capturer
from deadpool.trainer.capture.capture_tasks import WARM_UP_STEPS, Budget, Observation


def poor_budget() -> Budget:
    """Warm, and with next to nothing saved up."""
    budget = Budget(0.001)
    for _ in range(WARM_UP_STEPS):
        budget.earn(0.001)
    return budget


def in_thread(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_device_that_keeps_up_has_every_version_captured_and_clean(make_bench, twin):
    bench = make_bench(twin)
    bench.step()
    bench.step()
    bench.await_said(Captured, 3)
    assert bench.captured() == [0, 1, 2]
    assert bench.session.core.clean


def test_version_is_declared_only_when_the_device_has_come_that_far(make_bench, twin):
    bench = make_bench(twin)
    bench.await_said(Captured, 1)
    twin.computing = True
    bench.step()
    assert bench.captured() == [0] and not bench.session.core.clean
    twin.catch_up()
    bench.await_said(Captured, 2)
    assert bench.session.core.clean


def reach_garbage(bench: CaptureBench, twin: DeviceTwin) -> None:
    """A step is enqueued, the fence comes, the aborted collective lets the device go on, with garbage."""
    bench.await_said(Captured, 1)
    twin.computing = True
    bench.step()
    bench.session.halt()
    twin.catch_up()
    bench.job.capturer.cancel()


def test_garbage_after_an_abort_is_neither_sealed_nor_clean(make_bench, twin):
    bench = make_bench(twin)
    reach_garbage(bench, twin)
    assert bench.captured() == [0] and bench.missed() == []
    live = bench.session.core.rest()
    assert live.version == Version(FIRST, 1) and not live.clean


def test_control_who_looks_at_the_flag_first_takes_garbage_for_clean(make_bench, twin, monkeypatch):
    def observe_hastily(self: Capturer, task: Observation) -> None:
        self._on_observed(task.version)
        task.boundary.wait()

    monkeypatch.setattr(Capturer, "_observe", observe_hastily)
    bench = make_bench(twin)
    bench.await_said(Captured, 1)
    twin.computing = True
    bench.step()
    assert bench.session.wait(lambda: bench.session.core.clean or None, timeout_s=LIMIT_S)
    bench.session.halt()
    twin.catch_up()
    assert bench.session.core.rest().clean


def test_copy_that_outlives_its_generation_is_not_declared(make_bench, twin):
    bench = make_bench(twin)
    bench.await_said(Captured, 1)
    twin.copying = False
    bench.step()
    assert bench.session.wait(lambda: twin.issued[1:] or None, timeout_s=LIMIT_S)
    bench.session.halt()
    twin.copy()
    bench.job.capturer.finish()
    assert bench.captured() == [0]


def test_optimizer_does_not_wait_on_the_host_and_the_copy_is_of_the_boundary(make_bench, twin):
    bench = make_bench(twin)
    bench.await_said(Captured, 1)
    twin.computing, twin.copying = True, False
    bench.step()
    twin.issued, twin.holds = [], 0
    digest = bench.job.digest()
    with torch.no_grad():
        bench.model[1].running_mean.fill_(7.0)  # forward goes on: it writes buffers, whose clones are copied
    bench.job.capturer.settle()
    assert sum(twin.issued) == sum(each.nbytes for each in bench.state._bulk.locals.values()) and twin.holds == 1
    assert bench.captured() == [0]
    twin.computing = False
    twin.catch_up()
    twin.copy()
    bench.restore(bench.await_said(Captured, 2)[1])
    assert bench.job.digest() == digest


def test_capture_that_would_stall_is_given_up_in_the_middle(make_bench, twin, monkeypatch):
    monkeypatch.setattr("deadpool.snapshot.copying.lanes.MOVE_BYTES", 64)
    bench = make_bench(twin)
    bench.await_said(Captured, 1)
    twin.copying = False
    bench.step()
    twin.stats.note_copy(1, 1.0)  # a byte per second
    bench.job.budget = poor_budget()
    bench.session.wait(lambda: len(twin.issued) or None, timeout_s=LIMIT_S)
    before = len(twin.issued)
    twin.copy(1)
    bench.job.capturer.settle()
    assert not bench.session.of_kind(Missed)  # what is in flight is still being written
    twin.copy()
    missed = bench.await_said(Missed, 1)[0]
    assert missed.number == 1 and "would have waited" in missed.reason and missed.stall_s > 1.0
    assert len(twin.issued) < before + 8
    assert bench.captured() == [0]
    assert all(read_seal(slot) is None for slot in bench.session.slots.values())


def test_capture_whose_copy_fits_before_the_optimizer_is_committed(make_bench):
    twin = DeviceTwin(window_s=1000.0)
    bench = make_bench(twin)
    twin.stats.note_copy(100, 1.0)
    twin.computing = True
    bench.job.budget = poor_budget()
    bench.job.capturer.settle()
    twin.catch_up()
    bench.await_said(Captured, 1)


def test_host_stays_one_step_ahead_of_the_device(make_bench, twin):
    bench = make_bench(twin)
    twin.computing = True
    bench.step()
    assert bench.job.number == 1
    ahead = in_thread(bench.step)
    ahead.join(0.2)
    assert ahead.is_alive() and bench.job.number == 1
    twin.catch_up()
    ahead.join(LIMIT_S)
    assert not ahead.is_alive() and bench.job.number == 2


def test_abort_ends_the_waiting_for_the_device(make_bench, twin):
    bench = make_bench(twin)
    twin.computing = True
    bench.step()
    bench.train()
    ahead = in_thread(bench.end_step)
    ahead.join(0.2)
    assert ahead.is_alive()
    bench.session.halt()
    ahead.join(LIMIT_S)
    assert not ahead.is_alive() and bench.job.number == 1
    with pytest.raises(Unwind):
        bench.optimizer.step()


@pytest.mark.parametrize("why", ["no slot", "not scheduled", "switched off"])
def test_versions_that_are_not_captured_are_observed_too(make_bench, twin, why):
    bench = make_bench(twin, granted=0 if why == "no slot" else 3, every=4 if why == "not scheduled" else 1)
    bench.job.enabled = why != "switched off"
    twin.computing = True
    for number in (1, 2, 3):
        bench.step()
        twin.catch_up()
        bench.await_observed(number)
    assert bench.session.core.clean == (why != "switched off")  # without a boundary record there is nothing to keep


def test_device_error_ends_the_waiting_and_is_raised(make_bench, twin):
    bench = make_bench(twin)
    bench.job.reports.failed(RuntimeError("device-side assert"))
    with pytest.raises(RuntimeError, match="device-side assert"):
        bench.step()


def test_step_without_an_optimizer_step_settles_at_the_boundary(make_bench, twin):
    """Gradients are accumulated: the copy of the version before must not read clones of the next."""
    bench = make_bench(twin)
    bench.await_said(Captured, 1)
    twin.copying = False
    bench.end_step()
    twin.copying = True
    with torch.no_grad():
        bench.model[1].running_mean.fill_(7.0)
    twin.copy()
    bench.end_step()
    bench.await_said(Captured, 3)
    assert bench.captured() == [0, 1, 2]


def test_what_a_capture_cost_is_told_once(make_bench, twin):
    bench = make_bench(twin)
    bench.step()
    bench.await_said(Captured, 2)
    bench.step()
    told = [(each.captured, each.copy_s) for each in bench.session.said if isinstance(each, Stepped)]
    assert [captured for captured, _ in told] == [0, 1]
    assert all(copy_s is not None for _, copy_s in told)
