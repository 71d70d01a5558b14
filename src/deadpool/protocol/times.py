"""Times that may never come. Part of both cores."""

from __future__ import annotations


def earliest(one: float | None, other: float | None) -> float | None:
    """Of two times, each of which may never come."""
    if one is None or other is None:
        return other if one is None else one
    return one if one < other else other
