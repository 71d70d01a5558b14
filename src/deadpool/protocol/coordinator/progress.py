"""Whether the job gets anywhere while it runs: steps. Versions between faults are `setbacks.py`'s."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

HANG_AT_LEAST_S = 60.0
HANG_STEPS = 10
"""Where nobody has said what a hang is: so many times the slowest recent step without one, and not less than that."""

_RECENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """Nobody has completed a step for as long as a hang takes."""

    seconds: float
    behind: tuple[int, ...]  # all of them, if all are in the same step
    is_hang: bool  # False: a first step may be slow, and some process has not completed one

    @property
    def reason(self) -> str:
        return f"no step for {self.seconds:.0f} s; behind: ranks {', '.join(map(str, self.behind))}"


class HangWatch:
    """Looks at completed steps while the job runs. It says that nothing moves; who is at fault shows in the unwinding.

    How long a step takes is read off the same news: the time between two of them in which some rank got further.
    """

    def __init__(self, hang_s: float, world_size: int) -> None:
        self._given_s, self._ranks = hang_s, range(world_size)
        self._steps: dict[int, int] = {}
        self._warm = 0  # ranks that have completed a step
        self._since = 0.0
        self._told = False
        self._recent_s: deque[float] = deque(maxlen=_RECENT)

    @property
    def limit_s(self) -> float:
        return self._given_s or max(HANG_AT_LEAST_S, HANG_STEPS * max(self._recent_s, default=0.0))

    def begin(self, now: float) -> None:
        """The job runs, from here on, with whoever sits in it now."""
        self._steps, self._warm, self._since, self._told = {}, 0, now, False

    def excuse(self, seconds: float) -> None:
        self._since += seconds

    def hear(self, steps: Iterable[tuple[int, int]], now: float) -> None:
        """Of some ranks. What counts is that any of them is elsewhere than it was."""
        known = self._steps
        news = [(rank, step) for rank, step in steps if known.get(rank) != step]
        if not news:
            return
        if self._is_warm():
            self._recent_s.append(now - self._since)
        else:
            self._warm += sum(bool(step) - bool(known.get(rank)) for rank, step in news)
        known.update(news)
        self._since, self._told = now, False

    def look(self, now: float, *, paused: bool) -> Standstill | None:
        """Told once per standstill. `paused`: nobody expects a step, so this time does not count."""
        if paused:
            self._since = now
        still_s = now - self._since
        if self._told or (not self._given_s and still_s < HANG_AT_LEAST_S) or still_s < self.limit_s:
            return None
        self._told = True
        return Standstill(seconds=still_s, behind=self._behind(), is_hang=self._can_hang())

    def _is_warm(self) -> bool:
        """Every process has completed a step: the next ones take as long."""
        return self._warm == len(self._ranks)

    def _can_hang(self) -> bool:
        """A limit that was set on purpose holds for first steps too, but not before they begin."""
        in_loop = all(rank in self._steps for rank in self._ranks)
        return in_loop if self._given_s else self._is_warm()

    def _behind(self) -> tuple[int, ...]:
        furthest_back = min(self._steps.get(rank, -1) for rank in self._ranks)
        return tuple(rank for rank in self._ranks if self._steps.get(rank, -1) == furthest_back)
