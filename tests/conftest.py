"""For every test: it leaves nothing behind. Processes, descriptors, threads, temporary files are counted around it.

This process is a subreaper, so whatever a test's children leave behind comes to us, and tests have a temporary folder
of their own, so whatever lies there at the end is theirs.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from skips import pytest_terminal_summary  # noqa: F401  (a hook: what was skipped, in one line)

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 60.0  # it bounds only failures: what was ended needs its turn on a busy machine
_SHARED_MEMORY = Path("/dev/shm")
_KERNEL_LISTS_CHILDREN = Path("/proc/thread-self/children").exists()


def _own_temporary_folder() -> Path:
    """Before anything else asks for one. What pytest keeps for people to look at stays where it always is."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="deadpool-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def _let_children_have_signals() -> None:
    """Under nohup, or in the background of a script, signals are ignored, and what a test starts would inherit that.

    A handler that does nothing is as good for this process, and no program that is executed inherits it.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


os.environ["DEADPOOL_REHEARSE_RECOVERY"] = "false"  # most tests count faults; those of audits ask for theirs
os.environ.pop("PYTHONUNBUFFERED", None)  # with it print() writes a line in two parts, and lines of several ranks mix
_TEMPORARY = _own_temporary_folder()
_let_children_have_signals()
ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    looks: dict[str, Callable[[], set[str]]] = {
        "processes": _processes,
        "threads": _threads,
        "descriptors": _descriptors,
        "files": _files,
    }
    before = {what: look() for what, look in looks.items()}
    yield
    if any(look() - before[what] for what, look in looks.items()):
        gc.collect()
    left = {what: _left(look, before[what]) for what, look in looks.items()}
    left["processes"] = _end_processes(left["processes"])
    found = [f"{what}: {', '.join(sorted(names))}" for what, names in left.items() if names]
    if found:
        pytest.fail("left behind: " + "; ".join(found), pytrace=False)


def _left(look: Callable[[], set[str]], before: set[str]) -> set[str]:
    """What is still there after a while; ending takes its time."""
    deadline = time.monotonic() + _PATIENCE_S
    while (left := look() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _processes() -> set[str]:
    """The ids of all descendants, also of those whose parent is gone. A name would not do: that of a process that has
    just been forked changes when it executes its program. Dead ones that nobody else will wait for are reaped here."""
    alive = set()
    for pid in _descendants(os.getpid()):
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.add(str(pid))
            elif process.ppid() == os.getpid():
                _reap(process.pid)
        except psutil.NoSuchProcess:
            continue
    return alive


def _descendants(pid: int) -> Iterator[int]:
    """As the kernel lists them: psutil reads every process of the machine, which takes longer than most tests."""
    if not _KERNEL_LISTS_CHILDREN:
        yield from (process.pid for process in psutil.Process(pid).children(recursive=True))
        return
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = tasks.read_text().split()
        except OSError:
            continue  # it has just ended
        for child in map(int, children):
            yield child
            yield from _descendants(child)


def _reap(pid: int) -> None:
    """Only between tests, when no Popen of theirs can still be waiting for it."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _end_processes(pids: set[str]) -> set[str]:
    """Returns what they were. They are ended so that the next test does not suffer from this one."""
    ended = set()
    for pid in pids:
        try:
            process = psutil.Process(int(pid))
            ended.add(f"{pid} ({' '.join(process.cmdline())[:120]})")
            process.kill()
        except psutil.NoSuchProcess:
            ended.add(f"{pid} (gone by now)")
    return ended


def _threads() -> set[str]:
    """Without the one that writes lines to the console: a process has it from its first line to its end."""
    return {f"{thread.name} #{thread.ident}" for thread in threading.enumerate() if thread.name != "console"}


def _descriptors() -> set[str]:
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{path.name} -> {path.readlink()}")
        except OSError:
            continue  # the one this listing was read through
    return found


def _files() -> set[str]:
    """Ours by name: torch and multiprocessing keep caches and sockets there, for as long as they like."""
    return {str(path) for folder in (_TEMPORARY, _SHARED_MEMORY) for path in folder.glob("*deadpool*")}
