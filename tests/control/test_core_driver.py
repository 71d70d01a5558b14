"""A process that did not run learns that before it learns what happened meanwhile."""

from __future__ import annotations

import asyncio
import time

from deadpool.control.core_driver import CoreDriver
from deadpool.protocol.inputs import LinkLost, Stalled, Tick

LOST = LinkLost(node="n0", reason="closed")


class Listener:
    """A core that only writes down what it is told."""

    def __init__(self):
        self.told = []
        self.due = None

    def step(self, input, *, now):
        self.told.append(input)
        if self.due is not None and now >= self.due:
            self.due = None
        return []

    def deadline(self):
        return self.due


def told_after(stall_s: float):
    core = Listener()

    async def live():
        driver = CoreDriver(core, perform=lambda effect: None, stall_s=0.1)
        driver.feed(Tick())
        await asyncio.sleep(0)
        time.sleep(stall_s)  # the whole process stands still
        driver.feed(LOST)
        driver.stop()

    asyncio.run(live())
    return core.told[1:]


def test_stall_is_told_before_what_came_in_during_it():
    stalled, lost = told_after(1.0)
    assert lost == LOST
    assert isinstance(stalled, Stalled) and 1.0 <= stalled.seconds < 2.0, "all of it, not only since a timer was due"


def test_moment_without_news_is_no_stall():
    assert told_after(0.05) == [LOST]


def test_long_time_without_news_is_no_stall():
    core = Listener()

    async def live():
        driver = CoreDriver(core, perform=lambda effect: None, stall_s=1.0)  # a busy machine may keep it waiting, too
        driver.feed(Tick())
        await asyncio.sleep(2.0)
        driver.feed(LOST)
        driver.stop()

    asyncio.run(live())
    assert core.told[-1] == LOST and not any(isinstance(each, Stalled) for each in core.told)


def test_deadline_is_told_in_time():
    core = Listener()

    async def live():
        core.due = time.monotonic() + 0.1
        driver = CoreDriver(core, perform=lambda effect: None, stall_s=5.0)
        driver.feed(LOST)
        await asyncio.sleep(0.2)  # less than to the next look at the clock, which would tell it too
        driver.stop()

    asyncio.run(live())
    assert core.told == [LOST, Tick()]
