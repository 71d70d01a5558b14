"""Starting processes: nobody outlives the one that started it, and no interrupt is lost while it starts them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_CLONE_NEWNET = 0x40000000
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(sig: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """For subprocess's preexec_fn: the kernel ends the child when its parent dies, however it dies.

    The parent may have died before the call took effect: then the child ends itself.
    """
    parent = os.getpid()

    def arm() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
        _libc.prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm


def join_network(namespace: Path) -> None:
    """From here on this thread, and what it starts, is in that network namespace (a file below /proc). Where it is
    there already, which is where anybody may be, nothing happens."""
    if namespace.stat().st_ino == Path("/proc/thread-self/ns/net").stat().st_ino:
        return
    with namespace.open("rb") as file:
        _check(_libc.setns(file.fileno(), _CLONE_NEWNET))


def leave_network() -> None:
    """Into a network namespace of this thread's own, with nothing in it. OSError: this user may not."""
    _check(_libc.unshare(_CLONE_NEWNET))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def be_called(name: str) -> None:
    """In ps and top; the kernel keeps 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Around a fork: python drops what a signal handler raises while it runs its at-fork hooks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
