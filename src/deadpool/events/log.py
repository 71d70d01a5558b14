"""The log of a job's events: a JSONL file that one thread appends to, so that a disk never holds up a coordinator.

A record that the disk does not take waits in memory, and is written once the disk takes it again: a full disk, one that
became read-only, a folder that is gone for a while, a server of files that does not answer. Whoever leads the job looks
at `trouble()` now and then, and tells people.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from deadpool.host.private_files import owner_only_opener

WAITING_BYTES = 32 << 20
"""Records in memory, at most: hours of a job. Beyond that the oldest are dropped, and counted."""

SLOW_S = 10.0
"""A write that takes longer is told as trouble, although it may still end well."""

_RETRY_S = 1.0
_BATCH_BYTES = 1 << 20
_LAST_WRITES_S = 5.0
"""The time that still waiting lines have when the log is closed."""


class Trouble(NamedTuple):
    reason: str
    waiting: int  # records in memory
    dropped: int  # since the log was opened


class EventLog:
    """Appends records to a file. A record is in the file within milliseconds, so that a killed job keeps its log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._bytes = self._dropped = 0
        self._in_flight = 0  # lines at the head that a write has taken; they are not dropped
        self._is_torn = False  # the file ends inside of a line, of this process or of one that was killed
        self._failure: str | None = None
        self._writing_since: float | None = None
        self._closes = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns at once, whatever the disk does: a coordinator that takes over leads without it."""
        self._thread = threading.Thread(target=self._serve, name="deadpool-events", daemon=True)
        self._thread.start()

    def write(self, record: dict[str, Any]) -> None:
        """Returns at once. A log that was not started swallows records."""
        if self._thread is None:
            return
        line = json.dumps(record).encode() + b"\n"
        with self._changed:
            self._lines.append(line)
            self._bytes += len(line)
            while self._bytes > WAITING_BYTES and len(self._lines) > self._in_flight + 1:
                self._bytes -= len(self._lines[self._in_flight])
                del self._lines[self._in_flight]
                self._dropped += 1
            self._changed.notify_all()

    def trouble(self) -> Trouble | None:
        """None: the disk takes what is written."""
        with self._changed:
            since, reason = self._writing_since, self._failure
            if reason is None and since is not None and time.monotonic() - since > SLOW_S:
                reason = f"a write takes longer than {SLOW_S:g} s"
            return Trouble(reason, len(self._lines), self._dropped) if reason is not None else None

    @property
    def waiting(self) -> int:
        """Records that are not in the file, because the disk does not take them."""
        trouble = self.trouble()
        return trouble.waiting if trouble is not None else 0

    @property
    def dropped(self) -> int:
        """Records that are lost for ever, since the log was opened."""
        return self._dropped

    def unwritten(self) -> list[bytes]:
        """The lines of what is not in the file; some of them may get there while the caller looks."""
        with self._changed:
            return list(self._lines)

    def close(self) -> int:
        """Writes what still waits. What a disk does not take within seconds is lost: no process ends later for it.
        Returns how many records are lost."""
        thread, self._thread = self._thread, None
        if thread is None:
            return 0
        with self._changed:
            self._closes = True
            self._changed.notify_all()
        thread.join(_LAST_WRITES_S)
        if not thread.is_alive():
            self._close_file()
        with self._changed:
            return len(self._lines) + self._dropped

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        self._open_early()
        while batch := self._next_batch():
            try:
                self._append(batch)
            except OSError as error:
                self._fail(error)

    def _open_early(self) -> None:
        """The file is there before the first event. If it cannot be opened now, that is tried again with the event."""
        with self._changed:
            self._writing_since = time.monotonic()
        try:
            self._descriptor = self._open()
        except OSError as error:
            self._failure = error.strerror or str(error)
        with self._changed:
            self._writing_since = None

    def _next_batch(self) -> list[bytes]:
        """Waits for lines. Nothing: the log is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closes)
            batch, size = [], 0
            for line in self._lines:
                batch.append(line)
                size += len(line)
                if size > _BATCH_BYTES:
                    break
            self._in_flight, self._writing_since = len(batch), time.monotonic()
            return batch

    def _append(self, batch: list[bytes]) -> None:
        if self._descriptor is None or not self._is_in_place(self._descriptor):
            self._close_file()
            self._descriptor = self._open()
        begin = b"\n" if self._is_torn else b""
        written = os.write(self._descriptor, begin + b"".join(batch)) - len(begin)
        whole = self._count_whole(batch, written)
        with self._changed:
            for _ in range(whole):
                self._bytes -= len(self._lines.popleft())
            self._is_torn = self._is_torn if written < 0 else written > sum(map(len, batch[:whole]))
            self._in_flight, self._writing_since = 0, None
            if whole == len(batch):
                self._failure = None

    def _is_in_place(self, descriptor: int) -> bool:
        """Nobody can read a file whose folder was moved away, or is no longer mounted."""
        return os.path.samestat(os.fstat(descriptor), self._path.stat())

    @staticmethod
    def _count_whole(batch: list[bytes], written: int) -> int:
        count = 0
        for line in batch:
            written -= len(line)
            if written < 0:
                break
            count += 1
        return count

    def _fail(self, error: OSError) -> None:
        """The file is opened again for the next try: after some failures a descriptor stays useless for ever."""
        self._close_file()
        with self._changed:
            self._failure = error.strerror or str(error)
            self._in_flight, self._writing_since = 0, None
            if self._closes:
                self._dropped += len(self._lines)
                self._lines.clear()
            self._changed.wait_for(lambda: self._closes, _RETRY_S)

    def _open(self) -> int:
        descriptor = owner_only_opener(str(self._path), os.O_RDWR | os.O_APPEND | os.O_CREAT)
        size = os.fstat(descriptor).st_size
        self._is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        return descriptor

    def _close_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
