"""Set-up of a process that serves thousands of connections: file descriptors, a fast event loop, few pauses."""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

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
