"""The `deadpool` command as a process of its own, and waiting for what it does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

WAITING_SCRIPT = Path(__file__).with_name("waiting_script.py")
COMMAND = [sys.executable, "-m", "deadpool.cli.main"]


def deadpool(*arguments: object, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Runs to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@contextlib.contextmanager
def started(*arguments: object, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def await_true(ready: Callable[[], object], what: str, timeout_s: float = 60.0) -> float:
    """How long it took."""
    began = time.monotonic()
    while not ready():
        assert time.monotonic() < began + timeout_s, f"{what} did not come within {timeout_s:g} s"
        time.sleep(0.02)
    return time.monotonic() - began


def alive() -> list[str]:
    """Processes that came from this one since, also those that were left to it by a parent that is gone."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and process.pid not in _older:
                found.append(" ".join(process.cmdline()))
    return found


_older: set[int] = set()


def look_around() -> None:
    """What is alive now is kept by other tests for each other: a fork_server, the server of multiprocessing."""
    _older.update(process.pid for process in psutil.Process().children(recursive=True))


def temporary_folders() -> list[Path]:
    return list(Path(os.environ["TMPDIR"]).glob("deadpool-demo-*"))
