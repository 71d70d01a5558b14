"""Captures that do not fit before the optimizer, and are set aside: the loop goes on, and what is declared is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capture_bench import FIRST, CaptureBench
from device_twin import DeviceTwin
from test_late_device import in_thread, poor_budget
from waiting import LIMIT_S, wait_until

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Captured, Missed

SLOW = 1.0  # bytes per second of a copy to the host
WINDOW_S = 500.0  # from a boundary to its optimizer: a part of the copy fits


@pytest.fixture
def make_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CaptureBench]]:
    monkeypatch.setattr("deadpool.snapshot.copying.lanes.MOVE_BYTES", 64)
    benches: list[CaptureBench] = []

    def make(*arguments: Any, **options: Any) -> CaptureBench:
        """Version 0 is captured, and the budget allows next to nothing from now on."""
        benches.append(CaptureBench(*arguments, **options))
        benches[-1].await_said(Captured, 1)
        benches[-1].twin.stats.note_copy(1, 1 / SLOW)
        benches[-1].job.budget = poor_budget()
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def device(aside_bytes: int) -> DeviceTwin:
    return DeviceTwin(window_s=WINDOW_S, aside_bytes=aside_bytes)


def begin_to_drain(bench: CaptureBench, batches: int = 1) -> str:
    """A step, its version's capture, and the optimizer of the next step: only `batches` of the copy are done."""
    bench.twin.copying = False
    bench.step()
    digest = bench.job.digest()
    bench.twin.copy(batches)
    bench.train()
    return digest


def test_version_that_does_not_fit_is_captured_to_the_bit(make_bench):
    bench = make_bench(device(1 << 30))
    digest = begin_to_drain(bench)
    assert bench.captured() == [0] and not bench.missed()
    bench.end_step()
    bench.twin.copy()
    captured = bench.await_said(Captured, 2)[1]
    assert captured.version.number == 1
    bench.job.capturer.cancel()
    bench.restore(captured)
    assert bench.job.digest() == digest


def test_control_without_room_the_same_version_is_missed(make_bench):
    bench = make_bench(device(0))
    begin_to_drain(bench)
    bench.twin.copy()
    assert bench.await_said(Missed, 1)[0].number == 1 and bench.captured() == [0]


def test_training_goes_on_while_the_clones_are_copied(make_bench):
    """The main thread waits for observations: they must not wait for the copy."""
    bench = make_bench(device(1 << 30), every=8)
    bench.session.core.resumed_at = Version(FIRST, 1)  # it is captured, whatever the interval
    begin_to_drain(bench)
    bench.end_step()
    bench.twin.computing = True
    for number in (3, 4):
        bench.train()
        ahead = in_thread(bench.end_step)
        bench.twin.copy(1)  # the copy goes on, by one of many batches
        wait_until(lambda ahead=ahead: bench.twin.catch_up() or not ahead.is_alive(), "the boundary")
        assert bench.job.number == number
    assert bench.captured() == [0]  # the copy was not over meanwhile
    bench.twin.computing = False
    bench.twin.catch_up()
    bench.twin.copy()
    assert bench.await_said(Captured, 2)[1].version.number == 1


def test_abort_in_the_middle_leaves_nothing_declared(make_bench):
    bench = make_bench(device(1 << 30))
    begin_to_drain(bench)
    bench.session.halt()
    bench.twin.copy()
    bench.job.capturer.finish()
    assert bench.captured() == [0] and not bench.missed()


def test_fence_in_the_middle_ends_the_copy_and_nothing_writes_any_more(make_bench):
    bench = make_bench(device(1 << 30))
    begin_to_drain(bench)
    bench.twin.await_queued()  # clones are on their way
    bench.session.halt()
    cancelled = in_thread(bench.job.capturer.cancel)
    cancelled.join(0.1)
    assert cancelled.is_alive()  # what is in flight still writes
    bench.twin.copy()
    cancelled.join(LIMIT_S)
    assert not cancelled.is_alive()
    before, issued = [bytes(slot) for slot in bench.session.slots.values()], len(bench.twin.issued)
    bench.train_freely()
    assert [bytes(slot) for slot in bench.session.slots.values()] == before and len(bench.twin.issued) == issued
    assert bench.captured() == [0] and bench.twin.aside_room() == 1 << 30


def test_next_capture_while_clones_are_copied_is_given_up_and_the_one_after_is_not(make_bench):
    bench = make_bench(device(1 << 30))
    first = begin_to_drain(bench)
    bench.end_step()
    bench.train()  # version 2 cannot be set aside, and would have to wait for version 1 too
    assert bench.session.of_kind(Missed) == []  # not before the copying thread has come to it
    bench.twin.copy()
    captured = bench.await_said(Captured, 2)[1]
    missed = bench.await_said(Missed, 1)[0]
    assert (captured.version.number, missed.number) == (1, 2) and missed.stall_s > 1.0
    bench.end_step()
    bench.train()
    assert bench.await_said(Captured, 3)[2].version.number == 3
    bench.job.capturer.cancel()
    bench.restore(captured)
    assert bench.job.digest() == first


def test_without_a_limit_both_versions_are_captured_to_the_bit(make_bench):
    """The second one is waited for: its copy comes behind the clones of the first one."""
    bench = make_bench(device(1 << 30))
    first = begin_to_drain(bench)
    bench.job.budget = type(bench.job.budget)(0.0)
    bench.end_step()
    second = bench.job.digest()
    bench.job.capturer.settle()
    bench.twin.flush()  # the optimizer waits for it on the device
    bench.twin.copy()
    bench.train()
    captured = bench.await_said(Captured, 3)
    assert [each.version.number for each in captured] == [0, 1, 2]
    bench.job.capturer.cancel()
    for each, digest in ((captured[1], first), (captured[2], second)):
        bench.restore(each)
        assert bench.job.digest() == digest


def test_state_that_was_written_before_its_optimizer_is_not_set_aside(make_bench):
    bench = make_bench(device(1 << 30))
    bench.twin.copying = False
    bench.step()
    with torch.no_grad():
        bench.model[0].weight.add_(1.0)
    bench.train()
    bench.twin.copy()
    missed = bench.await_said(Missed, 1)[0]
    assert missed.number == 1 and "were written to before" in missed.reason


def test_end_of_the_job_waits_for_the_clones(make_bench):
    bench = make_bench(device(1 << 30))
    begin_to_drain(bench)
    finished = in_thread(bench.job.capturer.finish)
    finished.join(0.1)
    assert finished.is_alive()
    bench.twin.copy()
    finished.join(LIMIT_S)
    assert not finished.is_alive() and bench.captured() == [0, 1]


def test_first_and_larger_ones_are_told(make_bench):
    bench = make_bench(device(1 << 30), every=4)
    bench.session.core.resumed_at = Version(FIRST, 1)
    begin_to_drain(bench)
    told = [detail for what, detail in _events(bench) if what == "set_aside"]
    assert len(told) == 1 and told[0]["number"] == 1 and told[0]["bytes"] > 0


def _events(bench: CaptureBench) -> list[tuple[str, dict[str, Any]]]:
    return [message for message in bench.session.said if isinstance(message, tuple)]
