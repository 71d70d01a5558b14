"""Figures that are told again only when they have changed.

A heartbeat comes every second from every node; most of what it could say of costs was said before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

TOLERANCE = 0.05
"""Share by which a figure has to differ from the one that was told."""


class OfRank(Protocol):
    @property
    def rank(self) -> int: ...


T = TypeVar("T", bound=OfRank)


class Telling(Generic[T]):
    """Of things that are a rank's, each: `figures` are its numbers."""

    def __init__(self, figures: Callable[[T], tuple[float | None, ...]]) -> None:
        self._figures = figures
        self._told: dict[int, tuple[float | None, ...]] = {}

    def forget(self) -> None:
        """Whoever listens has forgotten too, or is somebody else."""
        self._told.clear()

    def news(self, things: Iterable[T]) -> tuple[T, ...]:
        fresh = []
        for thing in things:
            rank, figures = thing.rank, self._figures(thing)
            if not _is_close(self._told.get(rank), figures):
                self._told[rank] = figures
                fresh.append(thing)
        return tuple(fresh)


def _is_close(before: tuple[float | None, ...] | None, now: tuple[float | None, ...]) -> bool:
    if before is None:
        return False
    return all(
        one == other or (one is not None and other is not None and abs(one - other) <= TOLERANCE * abs(one))
        for one, other in zip(before, now, strict=True)
    )
