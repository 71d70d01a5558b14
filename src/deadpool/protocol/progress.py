"""Whether the job gets anywhere: steps while it runs, versions between faults. Part of the coordinator's core."""

from __future__ import annotations

from deadpool.protocol.commits import Commits

FUTILE_LIMIT = 5
"""Recoveries in a row without one new completed version, after which going on would be a loop."""


class StallWatch:
    """A job that hangs is not healed yet, but it must not hang unseen: it is noticed once per stall."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._progress: tuple[int, float] | None = None  # completed steps of all ranks together, and since when

    def look(self, steps: dict[int, int], now: float, *, running: bool) -> float | None:
        """For how many seconds no rank completed a step, if that is to be told."""
        done = sum(steps.values())
        if self._progress is None or done != self._progress[0]:
            self._progress = (done, now)
            return None
        still_s = now - self._progress[1]
        if not done or not running or still_s < self._stall_s:
            return None
        self._progress = (done, now)
        return still_s


class Setbacks:
    """What went wrong since a version was last completed, and whether it is worth going on."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._commit_count = 0  # as of the last fault
        self._futile = 0
        self._script_error: str | None = None

    def is_futile(self, *, one_more: bool) -> bool:
        self._forget_the_overcome()
        self._futile += one_more
        return self._futile > FUTILE_LIMIT

    def bug(self, error: str) -> str | None:
        """A script that never got anywhere, or fails the same way once more, has a bug, not an accident."""
        self._forget_the_overcome()
        repeated, self._script_error = error == self._script_error, error
        if self._commits.permit.watermark is None:
            return "before its first snapshot"
        return "again in the same way" if repeated else None

    def _forget_the_overcome(self) -> None:
        if self._commits.count != self._commit_count:
            self._commit_count, self._futile, self._script_error = self._commits.count, 0, None
