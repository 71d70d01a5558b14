"""Child processes, also those of a fork server.

`ForkLoop`: the loop of a fork server: it forks a child for each request and reports when a child has ended.

A fork server imports what its children need once. A fork then takes milliseconds instead of the seconds of an
import, and the children share that memory. It has a single thread, because a fork keeps no other thread alive. Used
for trainers (trainer/process/fork_server.py), for agents and coordinators (cli/start/fork_server.py) and for
torchrun's launchers (deadpool_lab/strangers/torchrun.py).

Starts processes so that no child outlives its parent and no interrupt is lost during a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER, _PR_SET_PTRACER = 1, 15, 36, 0x59616D61
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(sig: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Returns a preexec_fn for subprocess: with it the kernel ends the child when its parent dies, however it dies.

    The parent may have died before the call took effect; then the child ends itself.
    """
    parent = os.getpid()

    def set_parent_death_signal() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
        _libc.prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return set_parent_death_signal


def outlive_parent(outlives: bool, sig: signal.Signals = signal.SIGTERM) -> None:
    """Whether this process goes on when its parent dies, or gets `sig` then."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0 if outlives else int(sig), 0, 0, 0)


def join_network(namespace: Path) -> None:
    """Moves this thread, and what it starts from now on, into that network namespace (a file below /proc).

    Nothing happens if the thread is in it already: for that it needs no privilege.
    """
    if namespace.stat().st_ino == Path("/proc/thread-self/ns/net").stat().st_ino:
        return
    with namespace.open("rb") as file:
        _check(_libc.setns(file.fileno(), _CLONE_NEWNET))


def leave_network() -> None:
    """Moves this thread into a new, empty network namespace. Raises OSError if this user may not do that."""
    _check(_libc.unshare(_CLONE_NEWNET))


def leave_mounts() -> None:
    """Moves this thread into a mount namespace of its own: what it mounts nobody else sees, and the kernel unmounts it
    with the last process in there. Raises OSError if this user may not do that."""
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def be_observed_by(pid: int) -> None:
    """Lets that process read from /proc what this one does. Where the kernel has Yama, only ancestors may otherwise."""
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def adopt_orphans() -> None:
    """From here on a descendant whose parent ends becomes a child of this process, whatever session it is in."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def be_called(name: str) -> None:
    """Sets the name of this process in ps and top; the kernel keeps 15 bytes of it."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Holds interrupts back around a fork: Python drops what a signal handler raises while its at-fork hooks run.

    Blocking them is not enough: another thread may take the signal, and its handler runs in the main thread all the
    same. So the handlers are called afterwards; what they raise leaves this block.
    """
    arrived: list[int] = []
    handlers = _defer(arrived) if threading.current_thread() is threading.main_thread() else {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for sig, handler in handlers.items():
            signal.signal(sig, handler)
        for number in arrived:
            handlers[signal.Signals(number)](number, None)


def _defer(arrived: list[int]) -> dict[signal.Signals, Callable[[int, FrameType | None], Any]]:
    """Notes interrupts from now on, and returns the handlers. A signal that has none in Python is left alone."""
    handlers = {sig: handler for sig in _INTERRUPTS if callable(handler := signal.getsignal(sig))}
    for sig in handlers:
        signal.signal(sig, lambda number, frame: arrived.append(number))
    return handlers


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
