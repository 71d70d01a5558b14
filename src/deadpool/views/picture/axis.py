"""Maps values to positions on the page, finds round numbers for labels, and formats seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis: `low` is at `start`, `high` is at `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """Returns about `count` round numbers on the axis."""
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        stride = next(power * each for each in _ROUND if power * each >= rough * 0.999)
        first = math.ceil(self.low / stride - 1e-9)
        last = math.floor(self.high / stride + 1e-9)
        return [stride * i for i in range(first, last + 1)]


def in_words(seconds: float) -> str:
    """Formats seconds with at most three digits: 63 ms, 0.32 s, 2.10 s."""
    if seconds < 0.00095:
        return f"{1e6 * seconds:.0f} µs"
    if seconds < 0.0995:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.0f} s"


def tick_words(value: float, unit_s: bool) -> str:
    return f"{value:g}" if unit_s else f"{1e3 * value:g}"
