"""The log of one trainer: lines of its script, and marks that say when it took a rank and when a fault came.

Its size is bounded: a full file becomes NAME.log.1, that one NAME.log.2, and so on. Files that hold the lines around a
fault are linked into faults/CAUSE as well, so that they stay when rotation drops them; those of the last faults are
kept.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from deadpool.owner_only import make_private_folder, owner_only_opener

KEPT_FILES = 4
"""Full files that stay, beside the one that is written."""
KEPT_FAULTS = 8
FAULTS = "faults"
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
        self._file = self._open()
        self._faults: dict[str, int] = {}  # files kept, by cause
        self._fault_at: float | None = None

    def write(self, line: str) -> None:
        """A disk that is full costs lines, and neither a training step nor a recovery: this never raises."""
        data = line.encode(errors="replace") + b"\n"
        with contextlib.suppress(OSError):
            if self._file_bytes and self._file.tell() and self._file.tell() + len(data) > self._file_bytes:
                self._rotate()
            self._file.write(data)

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
        self._file.close()

    def _rotate(self) -> None:
        """The line that is written next is the first of the new file: none is lost, none is split."""
        self._file.close()
        for number in range(KEPT_FILES, 0, -1):
            older = self._rotated(number - 1) if number > 1 else self._path
            if older.exists():
                older.replace(self._rotated(number))
        self._file = self._open()
        if self._fault_at is not None and self._clock() - self._fault_at < _AFTERWARDS_S:
            self._keep(list(self._faults)[-1], self._path)

    def _open(self) -> IO[bytes]:
        """Unbuffered: a line is in the file when it was written. Lines for which no file can be opened are lost."""
        try:
            return open(self._path, "ab", buffering=0, opener=owner_only_opener)
        except OSError:
            return open(os.devnull, "ab", buffering=0)

    def _rotated(self, number: int) -> Path:
        return self._folder / f"{self._name}.log.{number}"

    def _kept(self, cause: str, number: int) -> Path:
        return self._folder / FAULTS / cause / f"{self._name}.{number}.log"

    def _keep(self, cause: str, path: Path) -> None:
        """Where the file system has no links, the logs are those that rotation leaves."""
        number = self._faults[cause]
        with contextlib.suppress(OSError):
            make_private_folder(self._folder / FAULTS / cause)
            os.link(path, self._kept(cause, number))
            self._faults[cause] = number + 1

    def _drop(self, cause: str) -> None:
        for number in range(self._faults.pop(cause)):
            self._kept(cause, number).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other trainers have files there
            (self._folder / FAULTS / cause).rmdir()
