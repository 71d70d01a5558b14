"""What must never wait for a terminal or a disk.

`print_line`, `print_record` and `close_console`: Lines for the console that coordinator, agents and trainers share.

A terminal that Ctrl-S has stopped, and a pager that nobody scrolls, take no line, and whoever writes one waits. So a
thread writes: heartbeats, snapshots and recoveries go on, and the lines come when they are taken again.

`DiskThread`: a thread for calls that wait for a disk, in their order, so that a slow disk never holds up a
heartbeat.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import sys
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


_STDOUT = 1


class _Console:
    def __init__(self) -> None:
        self._thread = DiskThread("console")
        self._left_out = 0  # lines since the last one that was taken

    def print_line(self, text: str) -> None:
        if sys.stdout is None:  # it was closed before this process began
            return
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            try:
                descriptor = sys.stdout.fileno()
            except (io.UnsupportedOperation, AttributeError):  # something in Python takes the place of the real one
                sys.stdout.write(f"{text}\n")
                return
            line = f"{text}\n".encode(errors="replace")
            if descriptor == _STDOUT:
                self._write_later(line)
            else:
                os.write(descriptor, line)  # of whoever calls us, and perhaps closed later: its number may be reused

    def _write_later(self, line: bytes) -> None:
        if self._left_out:
            line = f"[deadpool] {self._left_out} lines are left out here: this console took none\n".encode() + line
        self._thread.start()
        is_taken = self._thread.do(lambda: _write(line), len(line))
        self._left_out = 0 if is_taken else self._left_out + 1

    def close(self) -> None:
        self._thread.close()


def _write(line: bytes) -> None:
    """A terminal that was closed and a full disk cost the line, and nothing else."""
    with contextlib.suppress(OSError):
        os.write(_STDOUT, line)


_console = _Console()


def print_line(text: str) -> None:
    """By one write, end of line included: with PYTHONUNBUFFERED, which many images set, print() makes two of it, and
    what another process says comes between them. And nothing is left in a buffer, which Python would fail to write when
    it exits."""
    _console.print_line(text)


def print_record(**fields: object) -> None:
    """One line of JSON, for whoever collects logs. What is empty is left out."""
    print_line(json.dumps({"t": time.time(), **{name: value for name, value in fields.items() if value is not None}}))


def close_console() -> None:
    """Waits for lines that are not written yet, but for seconds only. For processes that end without Python's exit."""
    _console.close()


def _begin_anew() -> None:
    global _console
    _console = _Console()


os.register_at_fork(after_in_child=_begin_anew)  # a child has no thread of its parent
atexit.register(close_console)
