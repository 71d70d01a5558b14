"""Nobody outlives the process that started it: the kernel ends a child when its parent dies, however it dies."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(sig: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """For subprocess's preexec_fn. The parent may have died before the call took effect: then the child ends itself."""
    parent = os.getpid()

    def arm() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arm
