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
