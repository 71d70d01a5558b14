"""A curve of bounded size: the longer it gets, the fewer of its points are kept, but every peak and dip stays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LIMIT = 2000


@dataclass(slots=True)
class Series:
    limit: int = LIMIT
    xs: list[float] = field(default_factory=list)
    ys: list[float] = field(default_factory=list)

    def add(self, x: float, y: float) -> None:
        """Values that are not numbers cannot be drawn, and are left out."""
        if not (math.isfinite(x) and math.isfinite(y)):
            return
        self.xs.append(x)
        self.ys.append(y)
        if len(self.xs) > 2 * self.limit:
            self._thin_out()

    def clear(self) -> None:
        self.xs.clear()
        self.ys.clear()

    def points(self) -> list[tuple[float, float]]:
        return sorted(zip(self.xs, self.ys, strict=True))

    def _thin_out(self) -> None:
        """Keeps of every four points the lowest and the highest, in their order."""
        points = self.points()
        kept: list[tuple[float, float]] = []
        for begin in range(0, len(points), 4):
            four = points[begin : begin + 4]
            low, high = min(four, key=lambda each: each[1]), max(four, key=lambda each: each[1])
            kept += sorted({low, high})
        self.xs, self.ys = [x for x, _ in kept], [y for _, y in kept]
