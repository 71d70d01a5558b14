"""Files that only their owner can read, and locks that one process has.

`open_private`, `make_private_folder` and `owner_only_opener` make files and folders that only their owner can read,
whatever the umask says.

The umask itself is left alone: trainers would get it from the agent, and the user decides the mode of what a script
writes.

`ProcessLock`: a lock on a file, which one process at most can have: the lease of a machine that serves several jobs,
or a folder.

The kernel grants the lock and frees it when the process that has it ends, however it ends. So no process has to be
asked for it, and none that died can keep it. The file's text is for people: it says who took the lock last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
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


_FLOCK = "hhqqi"  # of fcntl.h: type, whence, start, length, process
_UNKNOWN = "another job"
_LOOKS_FOR_A_NAME = 20
_NAME_BYTES = 500


class ProcessLock:
    def __init__(self, path: Path, owner: str) -> None:
        """`owner` is what others read of this process while it has the lock."""
        self._owner = owner
        make_private_folder(path.parent)
        self._descriptor = owner_only_opener(str(path), os.O_RDWR | os.O_CREAT)
        self.is_held = self._is_signed = False

    def take(self, *, shared: bool = False) -> str | None:
        """None: this process has it. Otherwise the process that has it. Several may have it if all of them share it."""
        try:
            kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _lock(kind))
        except (BlockingIOError, PermissionError):
            return self._read_owner()
        self.is_held = True
        self.sign()
        return None

    def sign(self) -> None:
        """Writes into the file who has it; closing takes that away."""
        self._is_signed = True
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, self._owner.encode(), 0)

    @property
    def descriptor(self) -> int:
        """A process that is given it has the lock too, and keeps it when this one has ended."""
        return self._descriptor

    def last_owner(self) -> str | None:
        """Whoever signed last, if it has not taken its name away since."""
        return os.pread(self._descriptor, _NAME_BYTES, 0).decode(errors="replace").strip() or None

    def release(self) -> None:
        os.ftruncate(self._descriptor, 0)
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK))
        self.is_held = False

    def find_owner(self) -> str | None:
        """The other process that has it, if one has. Asking takes no lock, so nobody is kept from it meanwhile."""
        answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK))
        if struct.unpack(_FLOCK, answer[: struct.calcsize(_FLOCK)])[0] == fcntl.F_UNLCK:
            return None
        return self._read_owner()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Another one that shares it has its own name there.
            if self._is_signed and self.last_owner() == self._owner:
                os.ftruncate(self._descriptor, 0)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def _read_owner(self) -> str:
        """Whoever takes the lock writes its name right after that, so there may be none for a moment."""
        for _ in range(_LOOKS_FOR_A_NAME):
            if name := os.pread(self._descriptor, _NAME_BYTES, 0).decode(errors="replace").strip():
                return name
            time.sleep(0.001)
        return _UNKNOWN


def _lock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)
