"""Folders that belong to one process, and end with it.

`lock_folder`, `lock_folder_again` and `unusable`: one job per folder: a lock on a file in it, which ends with the
processes that have it, however they end.

Over NFS the lock holds between machines too, where the server has locks. Where a file system has none, what the file
says decides: a process of this machine that lives, or one of another machine, whose end cannot be seen from here.

`temporary_folder`: Temporary folders that are removed when their owner ends, also by SIGKILL: a small process waits
for that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from deadpool.errors import ConfigError
from deadpool.host.private_files import ProcessLock

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_START_TIME = 19  # in /proc/PID/stat, counted from the field after the name
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Owner(msgspec.Struct, frozen=True):
    """A process id alone may be that of another process by now, above all after the machine was started again."""

    pid: int
    host: str
    boot: str = ""  # which start of the machine
    since: int = 0  # when the process began, by the kernel's clock
    shares: bool = False

    @classmethod
    def here(cls, *, shares: bool) -> _Owner:
        pid = os.getpid()
        return cls(pid=pid, host=socket.gethostname(), boot=_boot(), since=_start_of(pid) or 0, shares=shares)

    def __str__(self) -> str:
        return f"process {self.pid} of {self.host}"

    def may_live(self) -> bool:
        if self.host != socket.gethostname():
            return True
        if self.pid == os.getpid() or (self.boot and self.boot != _boot()):
            return False
        since = _start_of(self.pid)
        return since is not None and self.since in (0, since)


def lock_folder(folder: Path, setting: str, *, name: str = "lock", shared: bool = False) -> ProcessLock:
    """Raises ConfigError if another process works in this folder. Closing the lock ends it. `shared`: for processes of
    one job, which may work there together."""
    try:
        return _lock(folder, setting, name, shared)
    except OSError as error:
        raise unusable(setting, folder, error) from None


def lock_folder_again(folder: Path, setting: str, *, name: str = "lock", shared: bool = False) -> ProcessLock | None:
    """Locks the folder for a process of a job that runs: a folder that is gone is not made anew, and its disk is needed
    for nothing."""
    with contextlib.suppress(OSError):
        return _lock(folder, setting, name, shared) if folder.is_dir() else None
    return None


def _lock(folder: Path, setting: str, name: str, shared: bool) -> ProcessLock:
    owner = _Owner.here(shares=shared)
    lock = ProcessLock(folder / name, msgspec.json.encode(owner).decode())
    try:
        holder = _holder(lock, folder / name, shared)
    except BaseException:
        lock.close()
        raise
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


def _holder(lock: ProcessLock, path: Path, shared: bool) -> str | None:
    """The process that has the lock, in words; None: this one has it now."""
    try:
        taken_by = lock.take(shared=shared)
        return None if taken_by is None else str(_owner(taken_by) or "another process")
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    owner = _owner(lock.last_owner() or "")
    if owner is not None and owner.may_live() and not (shared and owner.shares):
        return f"{owner}, as far as {path} says (if that is not so, remove the file),"
    lock.sign()
    return None


def _owner(text: str) -> _Owner | None:
    try:
        return msgspec.json.decode(text, type=_Owner)
    except msgspec.MsgspecError:
        return None


def _boot() -> str:
    """Empty where the kernel does not say: then a process id has to do."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


def _start_of(pid: int) -> int | None:
    """None: there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[_START_TIME])
    except (OSError, IndexError, ValueError):
        return None


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
