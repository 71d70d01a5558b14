"""Whether the job gets anywhere while it runs: steps. Versions between faults are `retry_limit.py`'s."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

HANG_AT_LEAST_S = 60.0
HANG_STEPS = 10
"""Where nobody has said what a hang is: so many times the slowest recent step without one, and not less than that."""

HANG_FIRST_STEPS = 3
"""A first step may compile, and takes as long as it took in this job before: so many times the slowest of those."""

_RECENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """Nobody has completed a step for as long as a hang takes."""

    seconds: float
    behind: tuple[int, ...]  # all of them, if all are in the same step
    is_hang: bool  # False: a first step may be slow, some process has not completed one, and none was seen before

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
        self._seen_from_go = False
        self._first_s = 0.0  # the longest so far that nobody got further in the first steps that are under way
        self._slowest_first_s: float | None = None  # in this job; None: nobody has seen any

    @property
    def limit_s(self) -> float:
        return self._given_s or max(HANG_AT_LEAST_S, HANG_STEPS * max(self._recent_s, default=0.0))

    @property
    def first_limit_s(self) -> float:
        """While some process has not completed its first step."""
        return self._given_s or max(self.limit_s, HANG_FIRST_STEPS * (self._slowest_first_s or 0.0))

    def begin(self, now: float, *, from_go: bool = True) -> None:
        """The job runs, from here on, with whoever sits in it now. Not `from_go`: it ran already, and nobody here knows
        how long first steps have taken."""
        self._steps, self._warm, self._since, self._told = {}, 0, now, False
        self._seen_from_go, self._first_s = from_go, 0.0

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
            self._hear_first_steps(news, now)
        known.update(news)
        self._since, self._told = now, False

    def _hear_first_steps(self, news: list[tuple[int, int]], now: float) -> None:
        if self._all_in_loop():  # what came before was no step: building, loading
            self._first_s = max(self._first_s, now - self._since)
        self._warm += sum(bool(step) - bool(self._steps.get(rank)) for rank, step in news)
        if self._is_warm() and self._seen_from_go:
            self._slowest_first_s = max(self._slowest_first_s or 0.0, self._first_s)

    def look(self, now: float, *, paused: bool) -> Standstill | None:
        """Told once per standstill. `paused`: nobody expects a step, so this time does not count."""
        if paused:
            self._since = now
        still_s = now - self._since
        if self._told or (not self._given_s and still_s < HANG_AT_LEAST_S) or still_s < self._present_limit_s:
            return None
        self._told = True
        return Standstill(seconds=still_s, behind=self._behind(), is_hang=self._can_hang())

    @property
    def _present_limit_s(self) -> float:
        return self.limit_s if self._is_warm() else self.first_limit_s

    def _is_warm(self) -> bool:
        """Every process has completed a step: the next ones take as long."""
        return self._warm == len(self._ranks)

    def _can_hang(self) -> bool:
        """A limit that was set on purpose, or one that first steps of this job have given, holds for first steps too,
        but not before they begin."""
        knows_first_steps = bool(self._given_s) or self._slowest_first_s is not None
        return self._is_warm() or (knows_first_steps and self._all_in_loop())

    def _all_in_loop(self) -> bool:
        return all(rank in self._steps for rank in self._ranks)

    def _behind(self) -> tuple[int, ...]:
        furthest_back = min(self._steps.get(rank, -1) for rank in self._ranks)
        return tuple(rank for rank in self._ranks if self._steps.get(rank, -1) == furthest_back)
