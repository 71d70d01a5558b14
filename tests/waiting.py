"""Waits for conditions that must come on any machine. For every test that waits for something.

A limit bounds only a run that fails: it is far longer than the slowest machine needs, and no test asserts on it. What a
test waits for must come however fast or slow the machine is, so a test first makes it come (a gate, a step that lasts).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from deadpool_lab.workload.run import pause, pause_async

LIMIT_S = 300.0
POLL_S = 0.02

T = TypeVar("T")


def wait_until(ready: Callable[[], T], what: str | Callable[[], str], *, limit_s: float = LIMIT_S) -> T:
    """Returns the first true value of `ready`. If none comes, the error says `what` was awaited."""
    deadline = time.monotonic() + limit_s
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what if isinstance(what, str) else what()} did not come within {limit_s:g} s")
        time.sleep(POLL_S)
    pause(what if isinstance(what, str) else "a condition")
    return found


async def wait_until_async(ready: Callable[[], T], what: str | Callable[[], str], *, limit_s: float = LIMIT_S) -> T:
    """The same for a test that shares its event loop with what it waits for."""
    deadline = time.monotonic() + limit_s
    while not (found := ready()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what if isinstance(what, str) else what()} did not come within {limit_s:g} s")
        await asyncio.sleep(POLL_S)
    await pause_async(what if isinstance(what, str) else "a condition")
    return found
