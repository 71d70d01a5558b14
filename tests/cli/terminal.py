"""A terminal that a test has the other end of: closing that end closes the terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Terminal:
    ours: int
    theirs: int

    def of_a_process(self) -> dict[str, Any]:
        """Arguments of subprocess.Popen: it gets a session of its own, and this as its terminal."""
        return {"stdin": self.theirs, "start_new_session": True, "process_group": None, "preexec_fn": _take_terminal}

    def type(self, line: str) -> None:
        os.write(self.ours, f"{line}\n".encode())

    def close(self) -> None:
        """As a window does, and as sshd does when its connection ends."""
        for descriptor in (self.theirs, self.ours):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.ours = self.theirs = -1


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextlib.contextmanager
def terminal() -> Iterator[Terminal]:
    opened = Terminal(*pty.openpty())
    try:
        yield opened
    finally:
        opened.close()
