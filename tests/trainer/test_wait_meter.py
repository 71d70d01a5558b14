"""What counts as waiting for others: standing still inside torch, and nothing else that holds a step up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from deadpool.trainer.wait_meter import PERIOD_S, WaitMeter

LONG_S = 30 * PERIOD_S


@pytest.fixture
def meter() -> Iterator[WaitMeter]:
    meter = WaitMeter()
    yield meter
    meter.close()


def wait_in_torch() -> None:
    """As for a collective: the lock of the interpreter is free, and somebody else will end it."""
    future: torch.futures.Future[None] = torch.futures.Future()
    timer = threading.Timer(LONG_S, lambda: future.set_result(None))
    timer.start()
    future.wait()
    timer.join()


def compute_in_torch() -> None:
    matrix = torch.randn(200, 200)
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        matrix = matrix @ matrix / matrix.norm()


def compute_in_python() -> None:
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        sum(range(1000))


def waited_share(meter: WaitMeter, work: Callable[[], None]) -> float:
    meter.begin_step()
    began = time.monotonic()
    work()
    meter.end_step()
    return meter.take() / (time.monotonic() - began)


def test_waiting_inside_torch_is_waiting(meter: WaitMeter) -> None:
    assert waited_share(meter, wait_in_torch) > 0.7


@pytest.mark.parametrize("work", [compute_in_torch, compute_in_python, lambda: time.sleep(LONG_S)])
def test_work_of_its_own_is_none(meter: WaitMeter, work: Callable[[], None]) -> None:
    assert waited_share(meter, work) < 0.2


def test_outside_of_steps_nothing_counts(meter: WaitMeter) -> None:
    meter.begin_step()
    meter.end_step()
    wait_in_torch()
    assert meter.take() == 0


def test_waiting_that_is_known_is_not_counted_twice(meter: WaitMeter) -> None:
    meter.begin_step()
    with meter.waiting():
        wait_in_torch()
    assert meter.take() == pytest.approx(LONG_S, rel=0.2)
