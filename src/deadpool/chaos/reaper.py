"""Nothing outlives the runner, however it ends: not what stands still either, which no closed pipe would wake.

Everything that it starts carries a mark in its environment, which children take_over. `left_behind` finds it, and a
small process that waits for the runner's end ends what it finds.
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

from deadpool.environment import CHAOS_MARK_VARIABLE

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
    """What is started inside carries the mark that it gives."""
    mark = f"{CHAOS_MARK_VARIABLE}={secrets.token_hex(8)}"
    warden = subprocess.Popen(
        [sys.executable, "-I", "-c", _WAIT_AND_END, mark], stdin=subprocess.PIPE, start_new_session=True
    )
    os.environ[CHAOS_MARK_VARIABLE] = mark.partition("=")[2]
    try:
        yield mark
    finally:
        del os.environ[CHAOS_MARK_VARIABLE]
        warden.kill()
        warden.communicate()


def left_behind(mark: str) -> list[str]:
    """What is still there although it should have ended; it is ended now."""
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
