"""Makes files and folders that only their owner can read, whatever the umask says.

The umask itself is left alone: trainers would get it from the agent, and the user decides the mode of what a script
writes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

_FILE, _FOLDER = 0o600, 0o700


def open_private(path: Path, mode: str) -> IO[Any]:
    """Opens a file as open() does. A file that existed before is made unreadable for others as well."""
    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=owner_only_opener)


def make_private_folder(path: Path, *, parents: bool = True) -> None:
    """Makes the folder. An existing one keeps its mode: it may be the user's own, and the files in it are private.

    Whether it exists is asked first: where a disk does not answer, making what exists waits, and asking does not."""
    if path.is_dir():
        return
    path.mkdir(parents=parents, exist_ok=True, mode=_FOLDER)


def owner_only_opener(path: str, flags: int) -> int:
    """Opens, as an opener of open(), files that only their owner can read."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, _FILE)
    try:
        os.fchmod(descriptor, _FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
