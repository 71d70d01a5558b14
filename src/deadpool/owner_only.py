"""Files and folders that nobody but their owner can look into, whatever the umask says.

Not by setting the umask: trainers would take_over it, and what a user's script writes is the user's to decide.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

_FILE, _FOLDER = 0o600, 0o700


def open_private(path: Path, mode: str) -> IO[Any]:
    """Like open(); a file that was there before is closed to others as well."""
    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=_opener)


def make_private_folder(path: Path) -> None:
    """One that is there already stays as it is: it may be the user's own. The files in it are private anyway."""
    path.mkdir(parents=True, exist_ok=True, mode=_FOLDER)


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, _FILE)
    try:
        os.fchmod(descriptor, _FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
