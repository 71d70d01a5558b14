"""Small parts of the page: numbers, curves, the token.

Numbers as an operator reads them.

`Series`: a curve of bounded size: the longer it gets, the fewer of its points are kept, but every peak and dip
stays.

`access_token` and `is_allowed`: the token that a page asks for: derived from the job's secret, from which nothing of
the secret can be learned.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import dataclass, field


def seconds(value: float) -> str:
    """Writes a time in the unit that leaves one to three digits before the point."""
    if value < 0.001:
        return f"{1e6 * value:.0f} µs"
    if value < 1:
        return f"{1e3 * value:.0f} ms"
    if value < 100:
        return f"{value:.3g} s"
    if value < 6000:
        return f"{value / 60:.3g} min"
    return f"{value / 3600:.3g} h" if value < 360_000 else f"{value / 86_400:.3g} days"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def whole(number: int) -> str:
    return f"{number:,}"


def some(numbers: list[int] | tuple[int, ...], most: int = 8) -> str:
    """A list that stays short: 1, 2, 3 and 29 more."""
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most:,} more"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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


_PURPOSE = b"deadpool dashboard: may read"


def access_token(secret: bytes) -> str:
    return hmac.new(secret, _PURPOSE, hashlib.sha256).hexdigest()


def is_allowed(given: str, token: str) -> bool:
    """`given` is an Authorization header."""
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
