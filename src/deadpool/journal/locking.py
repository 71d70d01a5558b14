"""One writer at a time at a destination, across processes: a rank that was given up may wake up and write."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator

_PATIENCE_S = 2.0
_LOOK_S = 0.005


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """BlockingIOError if another process keeps it for long: one that was stopped while it wrote. Who waits here for
    ever could not be told to end."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BlockingIOError("another process holds the lock; was it stopped while it wrote?") from None
        time.sleep(_LOOK_S)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
