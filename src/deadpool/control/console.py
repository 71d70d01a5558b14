"""Lines for the console that coordinator, agents and trainers share.

A terminal that Ctrl-S has stopped, and a pager that nobody scrolls, take no line, and whoever writes one waits. So a
thread writes: heartbeats, snapshots and recoveries go on, and the lines come when they are taken again.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import sys
import time
from typing import Any

from deadpool.control.disk_thread import DiskThread


class _Console:
    def __init__(self) -> None:
        self._thread = DiskThread("console")
        self._said_left_out = 0

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
            self._thread.start()
            self._thread.do(lambda: self._write(descriptor, line), len(line))

    def _write(self, descriptor: int, line: bytes) -> None:
        """A terminal that was closed and a full disk cost the line, and nothing else."""
        with contextlib.suppress(OSError):
            os.write(descriptor, line)
            missing = self._thread.left_out - self._said_left_out
            if missing:
                self._said_left_out += missing
                os.write(descriptor, f"[deadpool] {missing} lines are left out here: this console took none\n".encode())

    def close(self) -> None:
        self._thread.close()


_console = _Console()


def print_line(text: str) -> None:
    """By one write, end of line included: with PYTHONUNBUFFERED, which many images set, print() makes two of it, and
    what another process says comes between them. So nothing is left in a buffer, which Python would fail to write when
    it exits."""
    _console.print_line(text)


def print_record(**fields: Any) -> None:
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
