"""Signals that end a command as Ctrl-C does, so that every `finally` cleans up."""

from __future__ import annotations

import os
import signal
from types import FrameType

CODE_INTERRUPTED = 130
"""The exit code of a command that was ended by Ctrl-C, SIGTERM, or the end of its terminal."""
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_on_interrupts() -> None:
    """Turns SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt.

    SIGINT has to be among them, since a shell starts background jobs with SIGINT ignored. SIGHUP comes when a terminal
    is closed or its ssh connection ends; who wants to outlive that says so with nohup, and then it is left ignored.

    The second one interrupts the cleaning up. From the third on the process ends as it is, and the kernel ends its
    children with it: an exception in the middle of the exit would print a traceback and change the exit code.
    """
    count = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 2:
            os._exit(CODE_INTERRUPTED)
        if number == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes may send it twice
        raise KeyboardInterrupt

    for sig in _INTERRUPTS:
        if sig is not signal.SIGHUP or signal.getsignal(sig) is not signal.SIG_IGN:
            signal.signal(sig, interrupt)


def ignore_interrupts() -> None:
    """Ignores interrupts during the last lines of a command: nothing is left to be ended, and an interrupt would change
    the exit code.
    """
    for sig in _INTERRUPTS:
        signal.signal(sig, signal.SIG_IGN)
