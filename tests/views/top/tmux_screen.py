"""A program in a real tmux, on a server of its own: what the screen shows, and keys that are pressed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from waiting import LIMIT_S, wait_until

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing: scripts/packages installs it")


class Screen:
    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._socket = f"deadpool-test-{os.getpid()}-{secrets.token_hex(4)}"

    @contextlib.contextmanager
    def running(self, command: list[str]) -> Iterator[Screen]:
        line = " ".join(map(shlex.quote, command))
        size = ["-x", str(self.columns), "-y", str(self.rows)]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, f"{line}; echo ENDED $?; exec sleep 600")
        try:
            yield self
        finally:
            self._tmux("kill-server")

    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def await_text(self, good: Callable[[str], bool]) -> str:
        """Returns the first text that is good."""
        seen = [""]

        def is_seen() -> str:
            seen[0] = self.text()
            return seen[0] if good(seen[0]) else ""

        return wait_until(is_seen, lambda: f"another screen than\n{seen[0]}\n")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-L", self._socket, *words], capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout
