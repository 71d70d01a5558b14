"""The estimated cost of bytes that are read beside training, from a device's properties."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from deadpool.snapshot.copying.copy_stats import REACHED, CaptureCost, memory_bytes_per_s


def test_clock_and_bus_width_give_the_rate():
    h200 = SimpleNamespace(memory_clock_rate=3_201_000, memory_bus_width=6144)
    assert memory_bytes_per_s(h200) == pytest.approx(REACHED * 4.917e12, rel=1e-3)


@pytest.mark.parametrize("silent", [SimpleNamespace(), SimpleNamespace(memory_clock_rate=0, memory_bus_width=6144)])
def test_a_device_that_does_not_tell_is_charged_nothing(silent):
    assert memory_bytes_per_s(silent) == math.inf


def test_what_a_capture_costs_is_waiting_and_traffic():
    assert CaptureCost(stall_s=0.25, copied_bytes=1, copy_s=1.0, traffic_s=0.5).cost_s == 0.75
