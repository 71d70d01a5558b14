"""Processes that the script forks, such as the workers of a data loader: they end with the trainer, however it ends.

Left to themselves they would look for their parent every few seconds, and meanwhile hold its sockets and its memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_fork = threading.local()


def end_offspring_with_this_process() -> None:
    os.register_at_fork(before=_note_parent, after_in_child=_arm)


def _note_parent() -> None:
    # The kernel means the thread that forked: a child of any other thread than the main one would end with that.
    _fork.parent = os.getpid() if threading.current_thread() is threading.main_thread() else None


def _arm() -> None:
    if _fork.parent is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != _fork.parent:  # gone before the call took effect
            os._exit(1)
