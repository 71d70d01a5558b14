"""Numbers as an operator reads them."""

from __future__ import annotations


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
