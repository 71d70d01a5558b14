"""The loop of a fork server: it forks a child for each request and reports when a child has ended.

A fork server imports what its children need once. A fork then takes milliseconds instead of the seconds of an import,
and the children share that memory. It has a single thread, because a fork keeps no other thread alive. Used for
trainers (trainer/process/fork_server.py), for agents and coordinators (cli/start/fork_server.py) and for torchrun's
launchers (deadpool_lab/strangers/torchrun.py).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, Protocol

from deadpool.host.child_processes import end_with_parent


class _Readable(Protocol):
    def fileno(self) -> int: ...


class ForkLoop:
    """`on_request` reads one request from `requests`, and returns False when there will be no more. `on_exit` gets the
    process id and the exit code of a child that has ended."""

    def __init__(
        self, requests: _Readable, on_request: Callable[[], bool], on_exit: Callable[[int, int], None]
    ) -> None:
        self._on_request, self._on_exit = on_request, on_exit
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._pidfds: dict[int, int] = {}  # by process

    def serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._reap(key.data)
                elif not self._on_request():
                    return

    def fork(self, run: Callable[[], None], *, end_signal: signal.Signals | None = signal.SIGKILL) -> int:
        """Runs `run` in a child and returns the child's process id. The child ends with the exit code of a SystemExit,
        else with 0, or with 1 after another exception. When this process ends in any way, the child gets `end_signal`;
        None: it does not."""
        bind_to_parent = (lambda: None) if end_signal is None else end_with_parent(end_signal)
        pid = os.fork()
        if not pid:
            self._run_child(bind_to_parent, run)
        self._pidfds[pid] = os.pidfd_open(pid)
        self._selector.register(self._pidfds[pid], selectors.EVENT_READ, pid)
        return pid

    def _run_child(self, bind_to_parent: Callable[[], None], run: Callable[[], None]) -> NoReturn:
        code = 1
        try:
            bind_to_parent()
            self._selector.close()
            for pidfd in self._pidfds.values():
                os.close(pidfd)
            run()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        pidfd = self._pidfds.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._on_exit(pid, os.waitstatus_to_exitcode(status))
