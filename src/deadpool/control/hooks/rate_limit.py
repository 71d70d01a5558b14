"""How often a hook is called: a job in trouble logs many events, and nobody reads a hundred messages."""

from __future__ import annotations

from collections import deque

AT_MOST = 10
WITHIN_S = 60.0
ALWAYS = {"failed", "completed", "no_plan", "no_progress"}
"""Ends of jobs: they come once, and nothing comes after them that could say what was left out."""


class RateLimit:
    def __init__(self) -> None:
        self._calls: deque[float] = deque(maxlen=AT_MOST)
        self._left_out = 0

    def admits(self, what: str, now: float) -> bool:
        if what not in ALWAYS and len(self._calls) == AT_MOST and now - self._calls[0] < WITHIN_S:
            self._left_out += 1
            return False
        self._calls.append(now)
        return True

    def take_left_out(self) -> int:
        """How many calls were left out since it was asked last."""
        count, self._left_out = self._left_out, 0
        return count
