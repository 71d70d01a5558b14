"""The one rhythm of a shell around a core: feed an input, carry out the effects, set the timer to the next deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol


class Core(Protocol):
    def step(self, input: Any, *, now: float) -> list[Any]: ...
    def deadline(self) -> float | None: ...


class Rhythm:
    def __init__(self, core: Core, *, perform: Callable[[Any], None], wake: Callable[[float], Any]) -> None:
        """`wake` is told how late the timer fired, and gives the input that says so."""
        self._core, self._perform, self._wake = core, perform, wake
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at: float | None = None

    def feed(self, input: Any) -> None:
        for effect in self._core.step(input, now=time.monotonic()):
            self._perform(effect)
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._rings_at = None

    def _arm(self) -> None:
        deadline = self._core.deadline()
        if deadline == self._rings_at and self._timer is not None:
            return
        self.stop()
        if deadline is not None:
            delay_s = max(0.0, deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring, deadline)
            self._rings_at = deadline

    def _ring(self, deadline: float) -> None:
        self._timer = self._rings_at = None
        self.feed(self._wake(time.monotonic() - deadline))
