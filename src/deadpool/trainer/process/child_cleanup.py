"""Ends the processes that the script forks, such as the workers of a data loader, when the trainer ends in any way.

Otherwise they would notice the end of their parent only after seconds, and hold its sockets and memory until then.
"""

from __future__ import annotations

import os
import threading

from deadpool.host.child_processes import end_with_parent

_fork = threading.local()


def end_children_with_this_process() -> None:
    os.register_at_fork(before=_prepare, after_in_child=_bind_to_parent)


def _prepare() -> None:
    # The kernel binds a child to the thread that forked it, so a child of another thread would end with that thread.
    _fork.bind = end_with_parent() if threading.current_thread() is threading.main_thread() else None


def _bind_to_parent() -> None:
    if _fork.bind is not None:
        _fork.bind()
