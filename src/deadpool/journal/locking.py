"""Lets only one process at a time write to a destination: the old process of a rank may wake up and write too."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator

_TIMEOUT_S = 2.0
_POLL_S = 0.005


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Holds an exclusive lock on the file. Raises BlockingIOError if another process, which may have been stopped while
    it wrote, keeps the lock for long: a thread that waited here for ever could not be ended."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BlockingIOError("another process holds the lock; was it stopped while it wrote?") from None
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
