"""Virtual time: an event queue, and clocks of machines, which drift apart."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Action]] = []

    def at(self, time: float, action: Action) -> None:
        """Runs `action` at that time, or now if that is in the past: time never goes back."""
        self.events += 1
        heappush(self._queue, (max(time, self.now), self.events, action))

    def after(self, delay: float, action: Action) -> None:
        self.events += 1
        heappush(self._queue, (self.now + delay, self.events, action))

    def stop(self) -> None:
        self._queue.clear()

    def advance(self) -> bool:
        """Runs the next action. False means that nothing will ever happen again."""
        if not self._queue:
            return False
        self.now, _, action = heappop(self._queue)
        action()
        return True


class LocalClock:
    """The clock of one machine: it started at another time than the others, and drifts."""

    def __init__(self, clock: Clock, *, rate: float, ahead_s: float) -> None:
        self._clock, self._rate, self._ahead_s = clock, rate, ahead_s

    @property
    def now(self) -> float:
        return self._ahead_s + self._rate * self._clock.now

    def true(self, local: float) -> float:
        """The true time at which this clock shows `local`, or a moment later: a timer never fires early."""
        return (local - self._ahead_s) / self._rate + 1e-6
