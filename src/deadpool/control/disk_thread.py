"""A thread for calls that wait for a disk, in their order, so that a slow disk never holds up a heartbeat."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_MOST_BYTES = 16 << 20
_BYTES_OF_A_CALL = 400  # beside what it is to write
_CLOSE_S = 5.0


class DiskThread:
    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._calls: deque[tuple[Callable[[], None], int]] = deque()
        self._bytes = 0
        self._called_at: float | None = None
        self._closes = False
        self._thread: threading.Thread | None = None
        self.left_out = 0  # calls that found too much before them, or raised

    def start(self) -> None:
        """A second call does nothing."""
        with self._changed:
            if self._thread is None:
                self._closes = False
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._calls)

    def do(self, call: Callable[[], None], nbytes: int = 0) -> bool:
        """Returns at once. A call that keeps bytes in memory is left out where too many wait: False."""
        taken = nbytes + _BYTES_OF_A_CALL
        with self._changed:
            if nbytes and self._bytes + taken > _MOST_BYTES:
                self.left_out += 1
                return False
            self._calls.append((call, taken))
            self._bytes += taken
            self._changed.notify()
            return True

    def busy_s(self) -> float:
        """How long the call that runs now has lasted."""
        since = self._called_at
        return time.monotonic() - since if since is not None else 0.0

    def close(self) -> None:
        """Waits until all calls are done, but for seconds only."""
        thread, self._thread = self._thread, None
        with self._changed:
            self._closes = True
            self._changed.notify()
        if thread is not None:
            thread.join(_CLOSE_S)

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:  # the outer edge of a thread: the next call may be of another file
                self.left_out += 1
            finally:
                self._called_at = None

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._closes)
            self._called_at = time.monotonic()
            if not self._calls:
                return None
            call, nbytes = self._calls.popleft()
            self._bytes -= nbytes
            return call
