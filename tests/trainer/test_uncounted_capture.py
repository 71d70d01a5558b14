"""A copy that was being made while the script wrote in a way that torch does not count is never declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capture_bench import CaptureBench
from device_twin import DeviceTwin

from deadpool.protocol.messages import Captured, Missed


@pytest.fixture
def make_bench() -> Iterator[Callable[..., CaptureBench]]:
    benches: list[CaptureBench] = []

    def make(*arguments: Any, **options: Any) -> CaptureBench:
        benches.append(CaptureBench(*arguments, **options))
        benches[-1].await_said(Captured, 1)
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def write_uncounted(bench: CaptureBench) -> None:
    """One element, as a codebook's code that is assigned anew."""
    bench.model[0].weight.data[3, 5] = 7.0


def test_copy_is_given_up_in_the_first_step_that_writes_so(make_bench):
    twin = DeviceTwin()
    bench = make_bench(twin)
    twin.copying = False
    bench.step()
    write_uncounted(bench)
    assert bench.state.is_untouched, "torch does not count it"
    bench.train()
    bench.optimizer.step()
    twin.copy()
    bench.job.capturer.finish()
    assert bench.missed()[:1] == [1] and 1 not in bench.captured()
    assert bench.state.has_uncounted_writes


def test_copy_that_is_whole_before_the_optimizer_is_looked_at_too(make_bench):
    """The copying thread declares it, and compares first."""
    twin = DeviceTwin()
    bench = make_bench(twin)
    twin.copying = False
    bench.step()
    write_uncounted(bench)
    twin.copy()
    (missed,) = bench.await_said(Missed, 1)
    assert missed.number == 1 and "written to" in missed.reason


def test_copy_of_a_step_without_an_optimizer_is_looked_at_at_its_end(make_bench):
    twin = DeviceTwin()
    bench = make_bench(twin)
    twin.copying = False
    bench.step()
    write_uncounted(bench)
    bench.end_step()
    twin.copy()
    bench.job.capturer.finish()
    assert bench.missed() == [1] and bench.captured() == [0, 2]


def test_later_copies_are_made_at_once(make_bench):
    twin = DeviceTwin()
    bench = make_bench(twin)
    bench.session.grant(4)
    for _ in range(4):
        bench.step()
        write_uncounted(bench)
        with torch.no_grad():
            bench.model[0].weight.data.add_(1.0)
    bench.job.capturer.finish()
    assert bench.captured()[-1] == 4
