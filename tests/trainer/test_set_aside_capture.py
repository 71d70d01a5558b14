"""Captures that do not fit before the optimizer, and are set aside: the loop goes on, and what is declared is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capture_stage import FIRST, Stage
from device_twin import DeviceTwin
from test_late_device import in_thread, poor_budget
from waiting import LIMIT_S, wait_until

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Captured, Missed

SLOW = 1.0  # bytes per second of a copy to the host
WINDOW_S = 500.0  # from a boundary to its optimizer: a part of the copy fits


@pytest.fixture
def make_stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    monkeypatch.setattr("deadpool.snapshot.copying.lanes.COPY_PIECE_BYTES", 64)
    stages: list[Stage] = []

    def make(*arguments: Any, **options: Any) -> Stage:
        """Version 0 is captured, and the budget allows next to nothing from now on."""
        stages.append(Stage(*arguments, **options))
        stages[-1].await_said(Captured, 1)
        stages[-1].twin.stats.note_copy(1, 1 / SLOW)
        stages[-1].job.budget = poor_budget()
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


def device(aside_bytes: int) -> DeviceTwin:
    return DeviceTwin(window_s=WINDOW_S, aside_bytes=aside_bytes)


def begin_to_drain(stage: Stage, batches: int = 1) -> str:
    """A step, its version's capture, and the optimizer of the next step: only `batches` of the copy are done."""
    stage.twin.copying = False
    stage.step()
    digest = stage.job.digest()
    stage.twin.copy(batches)
    stage.train()
    return digest


def test_version_that_does_not_fit_is_captured_to_the_bit(make_stage):
    stage = make_stage(device(1 << 30))
    digest = begin_to_drain(stage)
    assert stage.captured() == [0] and not stage.missed()
    stage.end_step()
    stage.twin.copy()
    captured = stage.await_said(Captured, 2)[1]
    assert captured.version.number == 1
    stage.job.capturer.cancel()
    stage.restore(captured)
    assert stage.job.digest() == digest


def test_control_without_room_the_same_version_is_missed(make_stage):
    stage = make_stage(device(0))
    begin_to_drain(stage)
    stage.twin.copy()
    assert stage.await_said(Missed, 1)[0].number == 1 and stage.captured() == [0]


def test_training_goes_on_while_the_clones_are_copied(make_stage):
    """The main thread waits for observations: they must not wait for the copy."""
    stage = make_stage(device(1 << 30), every=8)
    stage.session.core.resumed_at = Version(FIRST, 1)  # it is captured, whatever the interval
    begin_to_drain(stage)
    stage.end_step()
    stage.twin.computing = True
    for number in (3, 4):
        stage.train()
        ahead = in_thread(stage.end_step)
        stage.twin.copy(1)  # the copy goes on, by one of many batches
        wait_until(lambda ahead=ahead: stage.twin.catch_up() or not ahead.is_alive(), "the boundary")
        assert stage.job.number == number
    assert stage.captured() == [0]  # the copy was not over meanwhile
    stage.twin.computing = False
    stage.twin.catch_up()
    stage.twin.copy()
    assert stage.await_said(Captured, 2)[1].version.number == 1


def test_abort_in_the_middle_leaves_nothing_declared(make_stage):
    stage = make_stage(device(1 << 30))
    begin_to_drain(stage)
    stage.session.halt()
    stage.twin.copy()
    stage.job.capturer.finish()
    assert stage.captured() == [0] and not stage.missed()


def test_fence_in_the_middle_ends_the_copy_and_nothing_writes_any_more(make_stage):
    stage = make_stage(device(1 << 30))
    begin_to_drain(stage)
    stage.twin.await_queued()  # clones are on their way
    stage.session.halt()
    cancelled = in_thread(stage.job.capturer.cancel)
    cancelled.join(0.1)
    assert cancelled.is_alive()  # what is in flight still writes
    stage.twin.copy()
    cancelled.join(LIMIT_S)
    assert not cancelled.is_alive()
    before, issued = [bytes(slot) for slot in stage.session.slots.values()], len(stage.twin.issued)
    stage.train_freely()
    assert [bytes(slot) for slot in stage.session.slots.values()] == before and len(stage.twin.issued) == issued
    assert stage.captured() == [0] and stage.twin.aside_room() == 1 << 30


def test_next_capture_while_clones_are_copied_is_given_up_and_the_one_after_is_not(make_stage):
    stage = make_stage(device(1 << 30))
    first = begin_to_drain(stage)
    stage.end_step()
    stage.train()  # version 2 cannot be set aside, and would have to wait for version 1 too
    assert stage.session.of_kind(Missed) == []  # not before the copying thread has come to it
    stage.twin.copy()
    captured = stage.await_said(Captured, 2)[1]
    missed = stage.await_said(Missed, 1)[0]
    assert (captured.version.number, missed.number) == (1, 2) and missed.stall_s > 1.0
    stage.end_step()
    stage.train()
    assert stage.await_said(Captured, 3)[2].version.number == 3
    stage.job.capturer.cancel()
    stage.restore(captured)
    assert stage.job.digest() == first


def test_without_a_limit_both_versions_are_captured_to_the_bit(make_stage):
    """The second one is waited for: its copy comes behind the clones of the first one."""
    stage = make_stage(device(1 << 30))
    first = begin_to_drain(stage)
    stage.job.budget = type(stage.job.budget)(0.0)
    stage.end_step()
    second = stage.job.digest()
    stage.job.capturer.settle()
    stage.twin.flush()  # the optimizer waits for it on the device
    stage.twin.copy()
    stage.train()
    captured = stage.await_said(Captured, 3)
    assert [each.version.number for each in captured] == [0, 1, 2]
    stage.job.capturer.cancel()
    for each, digest in ((captured[1], first), (captured[2], second)):
        stage.restore(each)
        assert stage.job.digest() == digest


def test_state_that_was_written_before_its_optimizer_is_not_set_aside(make_stage):
    stage = make_stage(device(1 << 30))
    stage.twin.copying = False
    stage.step()
    with torch.no_grad():
        stage.model[0].weight.add_(1.0)
    stage.train()
    stage.twin.copy()
    missed = stage.await_said(Missed, 1)[0]
    assert missed.number == 1 and "were written to before" in missed.reason


def test_end_of_the_job_waits_for_the_clones(make_stage):
    stage = make_stage(device(1 << 30))
    begin_to_drain(stage)
    finished = in_thread(stage.job.capturer.finish)
    finished.join(0.1)
    assert finished.is_alive()
    stage.twin.copy()
    finished.join(LIMIT_S)
    assert not finished.is_alive() and stage.captured() == [0, 1]


def test_first_and_larger_ones_are_told(make_stage):
    stage = make_stage(device(1 << 30), every=4)
    stage.session.core.resumed_at = Version(FIRST, 1)
    begin_to_drain(stage)
    told = [detail for what, detail in _events(stage) if what == "set_aside"]
    assert len(told) == 1 and told[0]["number"] == 1 and told[0]["bytes"] > 0


def _events(stage: Stage) -> list[tuple[str, dict[str, Any]]]:
    return [message for message in stage.session.said if isinstance(message, tuple)]
