"""A thread for calls that wait for a disk, in their order, so that a slow disk never holds up a heartbeat."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_MOST_CALLS = 20_000
_CLOSE_S = 5.0


class DiskThread:
    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._called_at: float | None = None
        self._closes = False
        self._thread: threading.Thread | None = None
        self.left_out = 0  # calls that found too many before them

    def start(self) -> None:
        """A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()

    def do(self, call: Callable[[], None]) -> None:
        """Returns at once. `call` must not raise."""
        with self._changed:
            if len(self._calls) >= _MOST_CALLS:
                self.left_out += 1
                return
            self._calls.append(call)
            self._changed.notify()

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
            call()
            self._called_at = None

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._closes)
            self._called_at = time.monotonic()
            return self._calls.popleft() if self._calls else None
