"""What counts as waiting for others: standing still inside torch, and nothing else that holds a step up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from waiting import wait_until

from deadpool.trainer.capture import meters
from deadpool.trainer.capture.meters import PERIOD_S, WaitMeter

LONG_S = 30 * PERIOD_S
SAMPLES = 30


@pytest.fixture
def meter() -> Iterator[WaitMeter]:
    meter, threads = WaitMeter(), torch.get_num_threads()
    yield meter
    meter.close()
    torch.set_num_threads(threads)


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each sample finds. Tests count them: how far apart they are depends on how busy the machine is."""
    found: list[bool] = []

    def look(thread: int) -> bool:
        found.append(waits := look_at(thread))
        return waits

    look_at = meters._waits
    monkeypatch.setattr(meters, "_waits", look)
    return found


def wait_in_torch(until: Callable[[], object]) -> None:
    """As for a collective: the lock of the interpreter is free, and somebody else will end it."""
    future: torch.futures.Future[None] = torch.futures.Future()

    def end() -> None:
        try:
            wait_until(until, "what ends the wait")
        finally:
            future.set_result(None)

    other = threading.Thread(target=end)
    other.start()
    future.wait()
    other.join()


def after(seconds: float) -> Callable[[], bool]:
    began = time.monotonic()
    return lambda: time.monotonic() - began >= seconds


def compute_in_torch(is_over: Callable[[], bool]) -> None:
    torch.set_num_threads(1)  # else it waits for threads of its own, where others have the CPUs
    matrix = torch.randn(200, 200)
    while not is_over():
        matrix = matrix @ matrix / matrix.norm()


def compute_in_python(is_over: Callable[[], bool]) -> None:
    while not is_over():
        sum(range(1000))


def sleep(is_over: Callable[[], bool]) -> None:
    while not is_over():
        time.sleep(PERIOD_S)


def waited_share(meter: WaitMeter, work: Callable[[], None]) -> float:
    began = time.monotonic()  # a sample counts for the time since the one before, which may be older than the work
    meter.begin_step()
    work()
    meter.end_step()
    return meter.take() / (time.monotonic() - began)


def test_waiting_inside_torch_is_waiting(meter: WaitMeter) -> None:
    """It lasts until so much of it is counted, and no more is counted than it lasts."""
    assert waited_share(meter, lambda: wait_in_torch(lambda: meter._waited_s >= LONG_S)) <= 1.0


@pytest.mark.parametrize("work", [compute_in_torch, compute_in_python, sleep])
def test_work_of_its_own_is_none(
    meter: WaitMeter, samples: list[bool], work: Callable[[Callable[[], bool]], None]
) -> None:
    meter.begin_step()
    work(lambda: len(samples) >= SAMPLES)
    meter.end_step()
    assert sum(samples) < 0.2 * len(samples)


def test_outside_of_steps_nothing_counts(meter: WaitMeter, samples: list[bool]) -> None:
    meter.begin_step()
    meter.end_step()
    wait_in_torch(lambda: sum(samples) >= SAMPLES // 3)
    assert meter.take() == 0


def test_waiting_that_is_known_is_not_counted_twice(meter: WaitMeter) -> None:
    meter.begin_step()
    outside = time.monotonic()
    with meter.waiting():
        inside = time.monotonic()
        wait_in_torch(after(LONG_S))
        least = time.monotonic() - inside
    most = time.monotonic() - outside
    waited = meter.take()
    assert waited is not None and least <= waited <= most
