"""What copies took, what they will take, and what they cost the kernels beside them.

`CaptureCost` and `CopyStats` remember how long recent copies and steps took, and predict the next ones. Any thread
may use it.

A copy also slows down the kernels that run beside it, because both read the device's memory. No clock in a single step
can measure that: a copy of 20 GB beside training on an H200 made a step of 0.745 s longer by 5.5 ms
(benchmarks/overhead.py --device cuda --case fits-local). Steps with and without a copy are compared for it
(`protocol/agent/copies/capture_costs.py`).

`memory_bytes_per_s` is how fast a device's memory is. Clones on the device are expected to take that long.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

_REMEMBERED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCost:
    """What one capture cost."""

    stall_s: float  # how long the optimizer waited for it
    copied_bytes: int
    copy_s: float  # from the first byte to the last

    @property
    def bytes_per_s(self) -> float:
        return self.copied_bytes / self.copy_s if self.copy_s > 0 else 0.0


class CopyStats:
    """The statistics of one lane. It expects the speed of the fastest recent copy: a slow copy may have waited for
    something else, and if too little were expected, no copy would be tried again to correct that. If too much is
    expected, the stall that follows is measured."""

    def __init__(self) -> None:
        self._speeds: deque[float] = deque(maxlen=_REMEMBERED)
        self._windows: deque[float] = deque(maxlen=_REMEMBERED)
        self._clone_speeds: deque[float] = deque(maxlen=_REMEMBERED)

    def note_copy(self, nbytes: int, seconds: float) -> None:
        if nbytes > 0 and seconds > 0:
            self._speeds.append(nbytes / seconds)

    def note_clone(self, nbytes: int, seconds: float) -> None:
        """Records how long cloning so many bytes on the device took."""
        if nbytes > 0 and seconds > 0:
            self._clone_speeds.append(nbytes / seconds)

    def note_window(self, seconds: float) -> None:
        """Records the time from a step's boundary to its optimizer."""
        self._windows.append(seconds)

    def copy_s(self, nbytes: int) -> float:
        """Predicts how long a copy will take. It is 0 before the first measurement, so that a copy is tried."""
        return nbytes / max(self._speeds) if self._speeds else 0.0

    def clone_s(self, nbytes: int, bytes_per_s: float) -> float:
        """Predicts how long cloning will take, by `bytes_per_s` before the first measurement."""
        return nbytes / max(self._clone_speeds, default=bytes_per_s)

    @property
    def window_s(self) -> float:
        """Predicts the time from the next boundary to its optimizer: the shorter one of the last two, because steps
        may differ, and a prediction that is too long would stall the optimizer."""
        recent = list(self._windows)[-2:]
        return min(recent) if recent else 0.0


REACHED = 0.7
"""The share of the nominal rate, which follows from clock and bus width, that memory reaches."""


def memory_bytes_per_s(properties: Any) -> float:
    """Returns the rate of a device's memory from torch's properties of the device. If they do not contain it, the rate
    is infinite, and clones take no time."""
    clock_khz = getattr(properties, "memory_clock_rate", 0)
    bus_bits = getattr(properties, "memory_bus_width", 0)
    edges = 2  # double data rate: a bit is carried at both edges of the clock
    return REACHED * edges * clock_khz * 1e3 * bus_bits / 8 or math.inf
