"""A process that did not run learns that before it learns what happened meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from waiting import wait_until_async

from deadpool.control import loops
from deadpool.control.loops import CoreDriver
from deadpool.protocol.inputs import LinkLost, Stalled, Tick

LOST = LinkLost(node="n0", reason="closed")


class Listener:
    """A core that only writes down what it is told."""

    def __init__(self):
        self.told = []
        self.due = None
        self.soon_s = None  # after a loss something is due so much later

    def step(self, input, *, now):
        self.told.append(input)
        if input == LOST and self.soon_s is not None:
            self.due = now + self.soon_s
            return []
        if self.due is not None and now >= self.due:
            self.due = None
        return []

    def deadline(self):
        return self.due


class Clock:
    """The driver's, which a test puts forward. Timers of the event loop have their own."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(loops, "time", SimpleNamespace(monotonic=lambda: self.now))


def told_after(stall_s: float, clock: Clock):
    core = Listener()

    async def live():
        driver = CoreDriver(core, perform=lambda effect: None, stall_s=0.1)
        driver.feed(Tick())
        clock.now += stall_s  # the whole process stands still: no timer fires
        driver.feed(LOST)
        driver.stop()

    asyncio.run(live())
    return core.told[1:]


def test_stall_is_told_before_what_came_in_during_it(monkeypatch):
    stalled, lost = told_after(1.0, Clock(monkeypatch))
    assert lost == LOST
    assert stalled == Stalled(seconds=1.0), "all of it, not only since a timer was due"


def test_moment_without_news_is_no_stall(monkeypatch):
    assert told_after(0.0625, Clock(monkeypatch)) == [LOST]


def test_long_time_without_news_is_no_stall(monkeypatch):
    """It looks at the clock by itself, and less has passed each time than a stall."""
    core, clock = Listener(), Clock(monkeypatch)
    monkeypatch.setattr(core, "step", put_forward(clock, core.step))

    async def live():
        driver = CoreDriver(core, perform=lambda effect: None, stall_s=0.1)
        driver.feed(Tick())
        await wait_until_async(lambda: len(core.told) > 8, "looks at the clock")
        driver.feed(LOST)
        driver.stop()

    asyncio.run(live())
    assert core.told[-1] == LOST and not any(isinstance(each, Stalled) for each in core.told)


def put_forward(clock: Clock, step):
    """Between two inputs, the driver's clock goes on by as much as between two of its looks."""

    def step_and_go_on(input, *, now):
        effects = step(input, now=now)
        clock.now += loops._CHECK_S
        return effects

    return step_and_go_on


def test_deadline_is_told_in_time(monkeypatch):
    """By a timer of its own: the next look at the clock, which would tell it too, is an hour away."""
    monkeypatch.setattr(loops, "_CHECK_S", 3600.0)
    core = Listener()
    core.soon_s = 0.1

    async def live():
        driver = CoreDriver(core, perform=lambda effect: None, stall_s=3600.0)
        driver.feed(LOST)
        await wait_until_async(lambda: len(core.told) > 1, "the deadline")
        driver.stop()

    asyncio.run(live())
    assert core.told == [LOST, Tick()]
