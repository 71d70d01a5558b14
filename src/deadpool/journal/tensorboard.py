"""A sink that writes numbers as TensorBoard scalars, nested ones as `outer/inner`. It needs the package `tensorboard`.

All numbers of a step are one record, so that a step is there whole or not at all. The names of event files contain the
run's id, and these files show which steps the folder has; a process that takes the rank over begins a new file. The
records are not written by torch's SummaryWriter, because its thread cannot tell when they are on the disk.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from deadpool.errors import ConfigError
from deadpool.journal.entry import Entry, Run, numbers_of
from deadpool.journal.jsonl import locked

_HEADER, _FOOTER = 12, 4  # bytes of a record before its data (length, checksum of the length) and after (checksum)
_LOCK = "deadpool.lock"


class TensorBoard:
    """A sink that writes the numbers of each step as TensorBoard scalars. It needs the package `tensorboard`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Writes event files into `folder`, which several ranks may share."""
        self.place = str(folder)
        self._folder = Path(folder)
        self._lock: int | None = None
        self._file: IO[bytes] | None = None
        self._suffix = ""
        self._seen: dict[Path, int] = {}  # how much of each event file was read, or written by this process
        self._next = 0

    def open(self, run: Run) -> None:
        _require_tensorboard()
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._suffix = f".{run.id}.rank{run.rank}"
        self._seen, self._next = {}, 0

    def write(self, entries: Sequence[Entry]) -> int | None:
        assert self._lock is not None
        with locked(self._lock):
            self._catch_up()
            new = [entry for entry in entries if entry.step >= self._next]
            if new:
                self._append(new)
                self._next = new[-1].step + 1
        return None

    def close(self) -> None:
        self._close_file()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _catch_up(self) -> None:
        """Reads what other processes have written for this rank. If there is anything, this process begins a new file:
        readers of TensorBoard finish one file before they open the next."""
        for path in sorted(self._folder.glob(f"events.out.tfevents.*{self._suffix}")):
            size, seen = path.stat().st_size, self._seen.get(path, 0)
            if size > seen:
                self._seen[path], last = _read_steps(path, seen)
                self._next = max(self._next, last + 1)
                self._close_file()

    def _append(self, entries: Sequence[Entry]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        records = [_event(entry) for entry in entries]
        if self._file is None:
            self._file = self._begin_file()
            records.insert(0, Event(wall_time=entries[0].time, file_version="brain.Event:2"))
        data = b"".join(_framed(record.SerializeToString()) for record in records)
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._seen[Path(self._file.name)] = self._file.tell()

    def _begin_file(self) -> IO[bytes]:
        """Opens a new file whose name comes after all others, whatever the clocks say: readers go by names."""
        there = (path.name.split(".")[3] for path in self._folder.glob("events.out.tfevents.*"))
        seconds = max([int(time.time()), *(int(text) + 1 for text in there if text.isdigit())])
        name = f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}{self._suffix}"
        return (self._folder / name).open("xb")

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _event(entry: Entry) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers_of(entry.values)]
    return Event(wall_time=entry.time, step=entry.step, summary=Summary(value=values))


def _framed(data: bytes) -> bytes:
    from tensorboard.summary.writer.record_writer import masked_crc32c

    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def _read_steps(path: Path, offset: int) -> tuple[int, int]:
    """Returns the length of the file and the last step in it, or -1 if there is none. It does not verify checksums,
    which would be slow in Python."""
    from tensorboard.compat.proto.event_pb2 import Event

    size, last = path.stat().st_size, b""
    with path.open("rb") as file:
        while offset + _HEADER + _FOOTER <= size:
            file.seek(offset)
            (length,) = struct.unpack("<Q", file.read(8))
            end = offset + _HEADER + length + _FOOTER
            if end > size:
                break  # its writer was killed
            file.seek(offset + _HEADER)
            last, offset = file.read(length), end
    event = Event.FromString(last)
    return size, event.step if event.HasField("summary") else -1


def _require_tensorboard() -> None:
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"TensorBoard needs the package tensorboard: install torch-deadpool[tensorboard] ({error})"
        ) from error
