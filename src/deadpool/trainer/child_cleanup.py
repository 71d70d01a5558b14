"""Processes that the script forks, such as the workers of a data loader: they end with the trainer, however it ends.

Left to themselves they would look for their parent every few seconds, and meanwhile hold its sockets and its memory.
"""

from __future__ import annotations

import os
import threading

from deadpool.child_processes import end_with_parent

_fork = threading.local()


def end_children_with_this_process() -> None:
    os.register_at_fork(before=_prepare, after_in_child=_arm)


def _prepare() -> None:
    # The kernel means the thread that forked: a child of any other thread than the main one would end with that.
    _fork.arm = end_with_parent() if threading.current_thread() is threading.main_thread() else None


def _arm() -> None:
    if _fork.arm is not None:
        _fork.arm()
