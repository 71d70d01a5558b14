"""Virtual time: an event queue, and links that deliver in order after random delays."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

Action = Callable[[], None]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Action]] = []

    def at(self, time: float, action: Action) -> None:
        self.events += 1
        heapq.heappush(self._queue, (time, self.events, action))

    def after(self, delay: float, action: Action) -> None:
        self.at(self.now + delay, action)

    def advance(self) -> bool:
        """Runs what is due next. False: nothing will ever happen again."""
        if not self._queue:
            return False
        self.now, _, action = heapq.heappop(self._queue)
        action()
        return True


class Link:
    """First in, first out, each message late by its own chance. A cut link swallows what is still on its way."""

    def __init__(
        self, clock: Clock, rng: random.Random, latency_s: Callable[[], float], deliver: Callable[[Any], None]
    ) -> None:
        self._clock, self._rng, self._latency_s, self._deliver = clock, rng, latency_s, deliver
        self._last = 0.0
        self.cut = False

    def send(self, message: Any) -> None:
        latency_s = self._latency_s()
        delay = latency_s * self._rng.random()
        if self._rng.random() < 0.02:
            delay += 20 * latency_s * self._rng.random()
        self._last = max(self._last, self._clock.now + delay)
        self._clock.at(self._last, lambda: None if self.cut else self._deliver(message))
