"""Reads single keys from a terminal, and gives the terminal back as it was."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType

_SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b": "escape",
}


def keys_in(text: str) -> list[str]:
    """What was typed, key by key. Sequences that are not known are left out."""
    found: list[str] = []
    while text:
        known = max((each for each in _SEQUENCES if text.startswith(each)), key=len, default="")
        if known == "\x1b" and text[1:2] in ("[", "O"):
            known, text = "", text[3:]
            continue
        found.append(_SEQUENCES.get(known, text[0]))
        text = text[len(known) or 1 :]
    return found


class Keyboard:
    def __enter__(self) -> Keyboard:
        self._descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def read(self, timeout_s: float) -> list[str]:
        """An empty list after the timeout. The terminal is gone: the key that ends."""
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return []
        data = os.read(self._descriptor, 1024)
        return keys_in(data.decode(errors="replace")) if data else ["q"]
