"""The one rhythm of a shell around a core: feed an input, carry out the effects, set the timer to the next deadline.

A process that did not run for a while is told so first (rule 20, timeouts), before anything else that has happened
meanwhile: what it finds then says as much about itself as about others. So that it knows how long that was, it looks at
the clock several times a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from deadpool.protocol.effects import Stalled, Tick

_LOOK_S = 0.25


class Core(Protocol):
    def step(self, input: Any, *, now: float) -> list[Any]: ...
    def deadline(self) -> float | None: ...


class Rhythm:
    def __init__(self, core: Core, *, perform: Callable[[Any], None], stall_s: float) -> None:
        """`stall_s`: to be late by more than that means that this process did not run."""
        self._core, self._perform, self._stall_s = core, perform, stall_s
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at: float | None = None
        self._look: asyncio.TimerHandle | None = None
        self._awake_at = time.monotonic()  # for certain
        self._stopped = False

    def feed(self, input: Any) -> None:
        now = time.monotonic()
        asleep_s = self._note_awake(now)
        if asleep_s > _LOOK_S + self._stall_s:
            self._step(Stalled(seconds=asleep_s), now)
        self._step(input, now)
        self._arm()

    def stop(self) -> None:
        self._stopped = True
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()

    def _step(self, input: Any, now: float) -> None:
        for effect in self._core.step(input, now=now):
            self._perform(effect)

    def _note_awake(self, now: float) -> float:
        """How long nothing has run here: at most _LOOK_S, if all is well."""
        asleep_s, self._awake_at = now - self._awake_at, now
        if self._look is None:
            self._look_again()
            return 0.0
        return asleep_s

    def _look_again(self) -> None:
        if not self._stopped:
            self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._look_again()
        self.feed(Tick())

    def _arm(self) -> None:
        """Left alone where nothing changes: a coordinator is fed thousands of times a second."""
        deadline = self._core.deadline()
        if self._stopped or (deadline == self._rings_at and self._timer is not None):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, deadline
        if deadline is not None:
            delay_s = max(0.0, deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.feed(Tick())
