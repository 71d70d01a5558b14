"""The log of one trainer: lines of its script, and marks that say when it took a rank and when a fault came.

Its size is bounded: a full file becomes NAME.log.1, that one NAME.log.2, and so on. Files that hold the lines around a
fault are linked into faults/CAUSE as well, so that they stay when rotation drops them; those of the last faults are
kept.

What the disk does not take waits in memory, up to WAITING_BYTES, and is written when the disk takes it again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from deadpool.events.log import Trouble
from deadpool.host.private_files import make_private_folder, owner_only_opener

KEPT_FILES = 4
"""Full files that stay, beside the one that is written."""
KEPT_FAULTS = 8
FAULTS = "faults"
WAITING_BYTES = 1 << 20
_RETRY_S = 1.0
_AFTERWARDS_S = 60.0
"""A file that is begun so soon after a fault is kept with it."""


def mark_of(cause: str) -> str:
    """How a mark with this cause ends, before its text."""
    return f" {cause}] "


class TrainerLog:
    def __init__(
        self, folder: Path, name: str, *, file_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`file_bytes` is the size at which a new file is begun; 0: never."""
        self._folder, self._name, self._file_bytes, self._clock = folder, name, file_bytes, clock
        self._path = folder / f"{name}.log"
        self._file: IO[bytes] | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._dropped = 0
        self._failure, self._retry_at = "", 0.0
        self._faults: dict[str, int] = {}  # files kept, by cause
        self._fault_at: float | None = None

    def write(self, line: str) -> None:
        """A disk that is full costs neither a training step nor a recovery: this never raises."""
        data = line.encode(errors="replace") + b"\n"
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        while len(self._waiting) > 1 and self._waiting_bytes > WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._dropped += 1
        self.flush()

    def flush(self) -> None:
        """Writes what waits. After a failure it is tried once a second, however many lines come."""
        if self._failure and self._clock() < self._retry_at:
            return
        try:
            while self._waiting:
                self._write_next()
            self._failure = ""
        except OSError as error:
            self._close_file()  # after some failures a descriptor stays useless for ever
            self._failure, self._retry_at = error.strerror or str(error), self._clock() + _RETRY_S

    @property
    def dropped(self) -> int:
        return self._dropped

    def trouble(self) -> Trouble | None:
        return Trouble(self._failure, len(self._waiting), self._dropped) if self._failure else None

    def _write_next(self) -> None:
        data = self._waiting[0]
        if self._file is not None and not self._is_in_place(self._file):
            self._close_file()
        file = self._file = self._file or self._open()
        if self._file_bytes and file.tell() and file.tell() + len(data) > self._file_bytes:
            file = self._rotate()
        written = file.write(data)
        self._waiting_bytes -= written
        if written < len(data):
            self._waiting[0] = data[written:]  # the disk is full in the middle of a line: its rest comes next
        else:
            self._waiting.popleft()

    def _is_in_place(self, file: IO[bytes]) -> bool:
        """Nobody can read a file whose folder was moved away, or is no longer mounted."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a server of files may tell only now that there was no room
                file.close()

    def mark(self, cause: str, text: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.write(f"[deadpool {now}{mark_of(cause)}{text}")

    def fault(self, cause: str) -> None:
        """Keeps the file before this one too: this one may have just begun."""
        if cause in self._faults:
            return
        self.mark(cause, "the generation ends here")
        self._faults[cause] = 0
        self._fault_at = self._clock()
        for path in (self._rotated(1), self._path):
            self._keep(cause, path)
        for old in list(self._faults)[:-KEPT_FAULTS]:
            self._drop(old)

    def close(self) -> None:
        """May be called again, where the disk did not take everything."""
        self._retry_at = 0.0
        self.flush()
        self._close_file()

    def _rotate(self) -> IO[bytes]:
        """The line that is written next is the first of the new file: none is lost, none is split."""
        self._close_file()
        for number in range(KEPT_FILES, 0, -1):
            older = self._rotated(number - 1) if number > 1 else self._path
            if older.exists():
                older.replace(self._rotated(number))
        self._file = self._open()
        if self._fault_at is not None and self._clock() - self._fault_at < _AFTERWARDS_S:
            self._keep(list(self._faults)[-1], self._path)
        return self._file

    def _open(self) -> IO[bytes]:
        """Unbuffered: a line is in the file when it was written."""
        return open(self._path, "ab", buffering=0, opener=owner_only_opener)

    def _rotated(self, number: int) -> Path:
        return self._folder / f"{self._name}.log.{number}"

    def _kept(self, cause: str, number: int) -> Path:
        return self._folder / FAULTS / cause / f"{self._name}.{number}.log"

    def _keep(self, cause: str, path: Path) -> None:
        """Where the file system has no links, the logs are those that rotation leaves."""
        number = self._faults[cause]
        with contextlib.suppress(OSError):
            for folder in (self._folder / FAULTS, self._folder / FAULTS / cause):
                make_private_folder(folder, parents=False)  # a run folder that is gone for a while is not made anew
            os.link(path, self._kept(cause, number))
            self._faults[cause] = number + 1

    def _drop(self, cause: str) -> None:
        with contextlib.suppress(OSError):  # other trainers have files there, or the disk is read-only
            for number in range(self._faults.pop(cause)):
                self._kept(cause, number).unlink(missing_ok=True)
            (self._folder / FAULTS / cause).rmdir()
