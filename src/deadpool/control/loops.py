"""How a process runs: its event loop, and the core that it drives.

`serve`, `collect_seldom` and `raise_file_limit`: Set-up of a process that serves thousands of connections: file
descriptors, a fast event loop, few pauses.

`Core` and `CoreDriver`: a core is driven: it is fed an input, its effects are carried out, and a timer is set to its
next deadline.

A core whose process did not run for a while gets to know that before any other input (rule 20, timeouts: a process
that stood still must not blame others for its own silence). To know how long it stood still, the driver reads the
clock several times a second.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from deadpool.protocol.inputs import Stalled, Tick

T = TypeVar("T")
YOUNG_OBJECTS = 500_000
"""Objects that are made between two collections of garbage. What is kept of nodes lives as long as they are in the job,
and may be a million objects: to scan them at every few hundred messages would be half of the work. A recovery of
thousands of nodes makes some 200,000 objects."""


def serve(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end, on uvloop where that is installed."""
    raise_file_limit()
    collect_seldom()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def collect_seldom() -> None:
    gc.set_threshold(YOUNG_OBJECTS, 50, 50)


def raise_file_limit() -> None:
    """Raises it to the limit of the system: a coordinator needs one descriptor per node, and some more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


_CHECK_S = 0.25


Input = TypeVar("Input", contravariant=True)
Effect = TypeVar("Effect", covariant=True)


class Core(Protocol[Input, Effect]):
    def step(self, input: Input | Stalled | Tick, *, now: float) -> Sequence[Effect]: ...
    def deadline(self) -> float | None: ...


class CoreDriver(Generic[Input, Effect]):
    def __init__(self, core: Core[Input, Effect], *, perform: Callable[[Effect], None], stall_s: float) -> None:
        """A timer that fires more than `stall_s` late means that this process did not run."""
        self._core, self._perform, self._stall_s = core, perform, stall_s
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._clock_timer: asyncio.TimerHandle | None = None
        self._awake_at = time.monotonic()  # the last time that this process is known to have run
        self._stopped = False

    def feed(self, input: Input | Stalled | Tick) -> None:
        now = time.monotonic()
        asleep_s = self._note_awake(now)
        if asleep_s > _CHECK_S + self._stall_s:
            self._step(Stalled(seconds=asleep_s), now)
        self._step(input, now)
        self._set_timer()

    def stop(self) -> None:
        self._stopped = True
        for timer in (self._timer, self._clock_timer):
            if timer is not None:
                timer.cancel()

    def _step(self, input: Input | Stalled | Tick, now: float) -> None:
        for effect in self._core.step(input, now=now):
            self._perform(effect)

    def _note_awake(self, now: float) -> float:
        """Returns how long this process did not run: normally not longer than _CHECK_S."""
        asleep_s, self._awake_at = now - self._awake_at, now
        if self._clock_timer is None:
            self._schedule_clock_check()
            return 0.0
        return asleep_s

    def _schedule_clock_check(self) -> None:
        if not self._stopped:
            self._clock_timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check_clock)

    def _check_clock(self) -> None:
        self._schedule_clock_check()
        self.feed(Tick())

    def _set_timer(self) -> None:
        """Leaves the timer alone where the deadline is the same: a coordinator gets thousands of inputs a second."""
        deadline = self._core.deadline()
        if self._stopped or (deadline == self._timer_at and self._timer is not None):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, deadline
        if deadline is not None:
            delay_s = max(0.0, deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.feed(Tick())
