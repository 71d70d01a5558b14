"""Estimates how much a copy slows down the kernels that run beside it, because both read the device's memory.

No clock in a single step can measure that: a copy of 20 GB beside training on an H200 made a step of 0.745 s longer by
5.5 ms (benchmarks/overhead.py --device cuda --case fits-local). That is the time in which its memory moves 20 GB at 3.6
of its nominal 4.9 TB/s. So every copied byte is charged with this time, in addition to what is measured.
"""

from __future__ import annotations

import math
from typing import Any

REACHED = 0.7
"""The share of the nominal rate, which follows from clock and bus width, that memory reaches."""


def memory_bytes_per_s(properties: Any) -> float:
    """Returns the rate of a device's memory from torch's properties of the device. If they do not contain it, the rate
    is infinite, and copies cost nothing."""
    clock_khz = getattr(properties, "memory_clock_rate", 0)
    bus_bits = getattr(properties, "memory_bus_width", 0)
    edges = 2  # double data rate: a bit is carried at both edges of the clock
    return REACHED * edges * clock_khz * 1e3 * bus_bits / 8 or math.inf
