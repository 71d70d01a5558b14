"""How far the ranks have come in a generation."""

from __future__ import annotations

from typing import Any


class Milestones:
    """By name: what each rank said when it got there."""

    def __init__(self, world_size: int) -> None:
        self._ranks = range(world_size)
        self._reached: dict[str, dict[int, Any]] = {}

    def clear(self) -> None:
        self._reached.clear()

    def reach(self, milestone: str, rank: int, what: Any) -> bool:
        """Whether all ranks are there by now."""
        self._reached.setdefault(milestone, {})[rank] = what
        return self.is_reached(milestone)

    def is_reached(self, milestone: str) -> bool:
        return len(self.said(milestone)) == len(self._ranks)

    def missing(self, milestone: str) -> list[int]:
        said = self.said(milestone)
        return [rank for rank in self._ranks if rank not in said]

    def said(self, milestone: str) -> dict[int, Any]:
        return self._reached.get(milestone, {})
