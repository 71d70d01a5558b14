"""What a process needs that serves thousands of links: descriptors, a quick event loop, and few pauses."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
YOUNG_OBJECTS = 500_000
"""Made between two looks for garbage. What is kept of nodes lives for as long as they are with us, and there may be a
million objects of it: to look through them at every few hundred messages would be half of the work. A recovery of
thousands of nodes makes some 200,000."""


def serve(main: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end: on uvloop where that is installed."""
    raise_file_limit()
    collect_seldom()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def collect_seldom() -> None:
    gc.set_threshold(YOUNG_OBJECTS, 50, 50)


def raise_file_limit() -> None:
    """To what the system allows: one descriptor per node, and some."""
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
