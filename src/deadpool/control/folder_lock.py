"""One job per folder: a lock on a file in it, which ends with the processes that have it, however they end.

Over NFS the lock holds between machines too, where the server has locks. Where a file system has none, what the file
says decides: a process of this machine that lives, or one of another machine, whose end cannot be seen from here.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path

from deadpool.control.machine_lease import MachineLease
from deadpool.errors import ConfigError

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_HOLDER = re.compile(r"process (\d+) of (\S+)")


def lock_folder(folder: Path, setting: str, *, name: str = "lock") -> MachineLease:
    """Raises ConfigError if another process works in this folder. Closing the lock ends it."""
    path = folder / name
    try:
        lock = MachineLease(path, f"process {os.getpid()} of {socket.gethostname()}")
        holder = _holder(lock, path)
    except OSError as error:
        raise ConfigError(
            f"{setting}={str(folder)!r} cannot be used: {error.strerror or error}. Give a folder that this user can "
            "write to, with some room on its disk"
        ) from None
    if holder is not None:
        lock.close()
        raise ConfigError(f"{setting}={str(folder)!r} cannot be used: {holder} uses it; end that, or give another one")
    return lock


def _holder(lock: MachineLease, path: Path) -> str | None:
    """The process that has the lock; None: this one has it now."""
    try:
        return lock.take()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    holder = lock.last_holder()
    if holder is not None and _may_live(holder):
        return f"{holder}, as far as {path} says (if that is not so, remove the file),"
    lock.sign()
    return None


def _may_live(holder: str) -> bool:
    found = _HOLDER.search(holder)
    if found is None or found[2] != socket.gethostname():
        return True
    return int(found[1]) != os.getpid() and Path(f"/proc/{found[1]}").exists()
