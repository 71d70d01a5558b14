"""The `deadpool` command as a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from waiting import LIMIT_S

_MOST_SENTENCES = 3
WAITING_SCRIPT = Path(__file__).with_name("waiting_script.py")
COMMAND = [sys.executable, "-m", "deadpool.cli.main"]


def deadpool(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs to its end."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    check_sentences(done.stderr)
    return done


def check_sentences(said: str) -> None:
    """Of what a command answers to a wrong input. A semicolon and a line break end a sentence too."""
    for answer in re.findall(r"^deadpool: (.*(?:\n(?!\[?deadpool\b).*)*)", said, re.MULTILINE):
        assert len(re.findall(r"[.;?!] +\S|\n *\S", answer)) < _MOST_SENTENCES, answer


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
