"""Temporary folders that are removed when their owner ends, also by SIGKILL: a small process waits for that."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_WAIT_AND_REMOVE = """
import os, shutil, sys, time
sys.stdin.buffer.read()  # ends when the owner closes the pipe or dies
deadline, gone = time.monotonic() + 30, 0
while gone < 5 and time.monotonic() < deadline:  # the owner's children may still be writing their last lines
    gone = 0 if os.path.exists(sys.argv[1]) else gone + 1
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    time.sleep(0.1)
"""


@contextlib.contextmanager
def temporary_folder(prefix: str = "deadpool-") -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    cleaner = subprocess.Popen(
        [sys.executable, "-I", "-c", _WAIT_AND_REMOVE, str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        cleaner.terminate()
        cleaner.communicate()
