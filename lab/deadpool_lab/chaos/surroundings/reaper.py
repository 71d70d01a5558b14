"""Ends every process of a run when the run ends, also those that are stopped and would not see a closed pipe.

Every process that a run starts carries a mark in its environment, which its children get too. `left_behind` finds such
processes, and a small process that waits for the end of the run kills those that are left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from deadpool.config.environment import PREFIX

MARK_VARIABLE = PREFIX + "CHAOS_MARK"
_PATIENCE_S = 5.0

_WAIT_AND_END = """
import os, signal, sys, time
def marked():
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if sys.argv[1].encode() in file.read() and int(name) != os.getpid():
                    yield int(name)
        except OSError:
            pass
sys.stdin.buffer.read()  # ends when the owner closes the pipe or dies
for _ in range(20):
    for pid in marked():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    time.sleep(0.1)
"""


@contextlib.contextmanager
def guarded() -> Iterator[str]:
    """Processes that are started inside carry the mark that this yields."""
    mark = f"{MARK_VARIABLE}={secrets.token_hex(8)}"
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-c", _WAIT_AND_END, mark], stdin=subprocess.PIPE, start_new_session=True
    )
    os.environ[MARK_VARIABLE] = mark.partition("=")[2]
    try:
        yield mark
    finally:
        del os.environ[MARK_VARIABLE]
        reaper.kill()
        reaper.communicate()


def left_behind(mark: str) -> list[str]:
    """Processes that should have ended by themselves. They are ended now."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return sorted(found.values())


def _marked(mark: str) -> dict[int, str]:
    found = {}
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as file:
                is_ours = mark.encode() in file.read()
            if is_ours and pid != os.getpid():
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    found[pid] = file.read().replace(b"\0", b" ").decode(errors="replace")[:100]
    return found
