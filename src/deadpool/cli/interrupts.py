"""Signals that end a command as Ctrl-C does, so that every `finally` cleans up."""

from __future__ import annotations

import signal
from types import FrameType

CODE_INTERRUPTED = 130
"""Of a command that was ended by Ctrl-C, SIGTERM, or the end of its terminal."""


def stop_on_interrupts() -> None:
    """Turns SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt.

    SIGINT has to be among them, since a shell starts background jobs with SIGINT ignored. SIGHUP comes when a terminal
    is closed or its ssh connection ends; who wants to outlive that says so with nohup, and then it is left ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes may send it twice
        raise KeyboardInterrupt

    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if sig is not signal.SIGHUP or signal.getsignal(sig) is not signal.SIG_IGN:
            signal.signal(sig, interrupt)
