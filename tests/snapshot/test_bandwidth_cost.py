"""How fast a device's memory is, from its properties."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from deadpool.snapshot.copying.copy_stats import REACHED, memory_bytes_per_s


def test_clock_and_bus_width_give_the_rate():
    h200 = SimpleNamespace(memory_clock_rate=3_201_000, memory_bus_width=6144)
    assert memory_bytes_per_s(h200) == pytest.approx(REACHED * 4.917e12, rel=1e-3)


@pytest.mark.parametrize("silent", [SimpleNamespace(), SimpleNamespace(memory_clock_rate=0, memory_bus_width=6144)])
def test_a_device_that_does_not_tell_is_expected_to_clone_at_once(silent):
    assert memory_bytes_per_s(silent) == math.inf
