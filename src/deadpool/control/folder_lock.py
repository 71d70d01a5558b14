"""One job per folder: a lock on a file in it, which ends with the processes that have it, however they end.

Over NFS the lock holds between machines too, where the server has locks. Where a file system has none, what the file
says decides: a process of this machine that lives, or one of another machine, whose end cannot be seen from here.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import msgspec

from deadpool.control.machine_lease import MachineLease
from deadpool.errors import ConfigError

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class _Owner(msgspec.Struct, frozen=True):
    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} of {self.host}"

    def may_live(self) -> bool:
        if self.host != socket.gethostname():
            return True
        return self.pid != os.getpid() and Path(f"/proc/{self.pid}").exists()


def lock_folder(folder: Path, setting: str, *, name: str = "lock") -> MachineLease:
    """Raises ConfigError if another process works in this folder. Closing the lock ends it."""
    own = _Owner(pid=os.getpid(), host=socket.gethostname())
    try:
        lock = MachineLease(folder / name, msgspec.json.encode(own).decode())
        holder = _holder(lock, folder / name)
    except OSError as error:
        raise unusable(setting, folder, error) from None
    if holder is not None:
        lock.close()
        raise ConfigError(f"{setting}={str(folder)!r} cannot be used: {holder} uses it; end that, or give another one")
    return lock


def unusable(setting: str, folder: Path, error: OSError) -> ConfigError:
    reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
    return ConfigError(
        f"{setting}={str(folder)!r} cannot be used: {reason}. Give a folder that this user can write "
        "to, with some room on its disk"
    )


def _holder(lock: MachineLease, path: Path) -> str | None:
    """The process that has the lock, in words; None: this one has it now."""
    try:
        taken_by = lock.take()
        return None if taken_by is None else str(_owner(taken_by) or "another process")
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    owner = _owner(lock.last_holder() or "")
    if owner is not None and owner.may_live():
        return f"{owner}, as far as {path} says (if that is not so, remove the file),"
    lock.sign()
    return None


def _owner(text: str) -> _Owner | None:
    try:
        return msgspec.json.decode(text, type=_Owner)
    except msgspec.MsgspecError:
        return None
