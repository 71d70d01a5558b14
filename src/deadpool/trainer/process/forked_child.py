"""Processes that the script forks.

A process that the script forks inherits all of a trainer and is none: it ends as under plain python.

Its exit comes back through the frames of the trainer (`sys.exit` in a child of os.fork, or a child that reaches the
end of the script). The agent's socket belongs to the parent, threads of ours do not exist there, and a lock may be
held by one of them for ever. So nothing of ours runs in the child: no message, no end of a step, no end of the job.

`end_children_with_this_process` ends the processes that the script forks, such as the workers of a data loader, when
the trainer ends in any way.

Otherwise they would notice the end of their parent only after seconds, and hold its sockets and memory until then.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

from deadpool.errors import StateError
from deadpool.host.child_processes import end_with_parent

_trainer: int | None = None  # the process that is the trainer; None: this is no trainer


def remember_trainer() -> None:
    """This process is the trainer; its children are not."""
    global _trainer
    _trainer = os.getpid()


def is_child() -> bool:
    return _trainer is not None and _trainer != os.getpid()


def require_trainer() -> None:
    """StateError: a forked process has gone on with the loop over the job's steps."""
    if is_child():
        raise StateError(
            "a process that the script has forked asked for the job's next step: only the trainer itself goes on with "
            "its steps. End the child inside of the step that forked it, by os._exit() or sys.exit()"
        )


@contextlib.contextmanager
def ending_like_python() -> Iterator[None]:
    """Surrounds the script: a child that comes out of it ends here."""
    try:
        yield
    except BaseException as error:
        if is_child():
            _end(_exit_code(error))
        raise
    if is_child():
        _end(0)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return _code_of_exit(error.code)
    with contextlib.suppress(Exception):
        sys.excepthook(type(error), error, error.__traceback__)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _code_of_exit(code: Any) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _end(code: int) -> NoReturn:
    """Ends a child in the order of python: threads of the child, exit handlers, buffers. Destructors are left out as
    for a trainer: one of a group could wait for its peers."""
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


_fork = threading.local()


def end_children_with_this_process() -> None:
    os.register_at_fork(before=_prepare, after_in_child=_bind_to_parent)


def _prepare() -> None:
    # The kernel binds a child to the thread that forked it, so a child of another thread would end with that thread.
    _fork.bind = end_with_parent() if threading.current_thread() is threading.main_thread() else None


def _bind_to_parent() -> None:
    if _fork.bind is not None:
        _fork.bind()
