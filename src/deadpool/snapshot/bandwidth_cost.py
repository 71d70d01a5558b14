"""What a copy takes from the kernels beside it without anybody waiting: the device's memory is read for both.

Not to be seen by any clock of one step: a copy of 20 GB beside training on an H200 made 0.745 s longer by 5.5 ms
(benchmarks/overhead.py --device cuda --case fits-local), which is the time its memory takes for 20 GB at 3.6 of the
4.9 TB/s that it is made for. So that is what a byte is charged with, beside whatever is measured.
"""

from __future__ import annotations

import math
from typing import Any

REACHED = 0.7
"""Of the rate that follows from clock and bus width."""


def memory_bytes_per_s(properties: Any) -> float:
    """From torch's properties of a device; infinite where they do not tell: then traffic costs nothing."""
    clock_khz = getattr(properties, "memory_clock_rate", 0)
    bus_bits = getattr(properties, "memory_bus_width", 0)
    edges = 2  # of a clock, at each of which a bit is carried
    return REACHED * edges * clock_khz * 1e3 * bus_bits / 8 or math.inf
