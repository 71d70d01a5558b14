"""A copy that was being made while the script wrote in a way that torch does not count is never declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capture_stage import Stage
from device_twin import DeviceTwin

from deadpool.protocol.messages import Captured, Missed


@pytest.fixture
def make_stage() -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(*arguments: Any, **options: Any) -> Stage:
        stages.append(Stage(*arguments, **options))
        stages[-1].await_said(Captured, 1)
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


def write_uncounted(stage: Stage) -> None:
    """One element, as a codebook's code that is assigned anew."""
    stage.model[0].weight.data[3, 5] = 7.0


def test_copy_is_given_up_in_the_first_step_that_writes_so(make_stage):
    twin = DeviceTwin()
    stage = make_stage(twin)
    twin.copying = False
    stage.step()
    write_uncounted(stage)
    assert stage.state.is_untouched, "torch does not count it"
    stage.train()
    stage.optimizer.step()
    twin.copy()
    stage.job.capturer.finish()
    assert stage.missed()[:1] == [1] and 1 not in stage.captured()
    assert stage.state.has_uncounted_writes


def test_copy_that_is_whole_before_the_optimizer_is_looked_at_too(make_stage):
    """The copying thread declares it, and compares first."""
    twin = DeviceTwin()
    stage = make_stage(twin)
    twin.copying = False
    stage.step()
    write_uncounted(stage)
    twin.copy()
    (missed,) = stage.await_said(Missed, 1)
    assert missed.number == 1 and "written to" in missed.reason


def test_copy_of_a_step_without_an_optimizer_is_looked_at_at_its_end(make_stage):
    twin = DeviceTwin()
    stage = make_stage(twin)
    twin.copying = False
    stage.step()
    write_uncounted(stage)
    stage.end_step()
    twin.copy()
    stage.job.capturer.finish()
    assert stage.missed() == [1] and stage.captured() == [0, 2]


def test_later_copies_are_made_at_once(make_stage):
    twin = DeviceTwin()
    stage = make_stage(twin)
    stage.session.grant(4)
    for _ in range(4):
        stage.step()
        write_uncounted(stage)
        with torch.no_grad():
            stage.model[0].weight.data.add_(1.0)
    stage.job.capturer.finish()
    assert stage.captured()[-1] == 4
