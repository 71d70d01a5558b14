"""Sinks for experiment trackers: TensorBoard and Weights & Biases. Each needs the package of its tracker.

`TensorBoard` writes numbers as scalars, nested ones as `outer/inner`. All numbers of a step are one record, so that a
step is there whole or not at all. The names of event files contain the run's id, and these files show which steps the
folder has; a process that takes the rank over begins a new file. The records are not written by torch's SummaryWriter,
because its thread cannot tell when they are on the disk.

`WandB` writes every entry as a row of a run, at its step. wandb hands rows to a helper process, which writes and sends
them later and ends with the trainer. So a row that was handed over is not durable yet. Offline, the run's files show
which steps it has, and a row is durable once it is in them: `HistoryFile` reads them, also while they grow. Such a file
is a log in LevelDB's format: a header of 7 bytes, then blocks of 32 KiB that hold pieces of records, each of which is
one of wandb's protobuf messages. Online, the server tells the next step when the run is opened (`run.step`), and a row
is taken for durable a while after it was handed over. The server accepts only growing steps, so it drops a row that
comes twice.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from deadpool.errors import ConfigError
from deadpool.journal.entry import Entry, Run, numbers_of
from deadpool.journal.jsonl import locked

_HEADER, _FOOTER = 12, 4  # bytes of a record before its data (length, checksum of the length) and after (checksum)
_LOCK = "deadpool.lock"

_FILE_HEADER = 7
_BLOCK = 32 << 10
_PIECE_HEADER = 7  # checksum, length, kind
_FULL, _FIRST, _LAST = 1, 2, 4


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


class HistoryFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = _FILE_HEADER  # of the first piece that was not read yet
        self._begun = b""  # the first pieces of a record whose last piece was not read yet
        self._last_step = -1

    def read(self) -> int:
        """Returns the last step in the file, or -1. That step is on the disk then, not only in a cache."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
            if data:
                os.fsync(file.fileno())
        for record in self._records(data):
            self._last_step = max(self._last_step, _step_of(record))
        return self._last_step

    def _records(self, data: bytes) -> Iterator[bytes]:
        """Yields the records that end in `data`, which begins at the offset."""
        start = self._offset
        while True:
            left_in_block = _BLOCK - self._offset % _BLOCK
            if left_in_block < _PIECE_HEADER:
                self._offset += left_in_block
            here = self._offset - start
            end = here + _PIECE_HEADER + int.from_bytes(data[here + 4 : here + 6], "little")
            if here + _PIECE_HEADER > len(data) or end > len(data):
                return
            kind, piece = data[here + 6], data[here + _PIECE_HEADER : end]
            self._begun = piece if kind in (_FULL, _FIRST) else self._begun + piece
            self._offset = start + end
            if kind in (_FULL, _LAST):
                yield self._begun


def _step_of(data: bytes) -> int:
    """Returns the step of a history record, or -1 for any other record."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    record = messages.Record.FromString(data)
    return int(record.history.step.num) if record.WhichOneof("record_type") == "history" else -1


_FLUSH_S = 1.0
_SENT_S = 60.0
"""Online, a row is taken for sent this long after it was handed over. wandb sends every few seconds."""
_SETTLE_S = 2.0
"""The helper process of a killed trainer ends within this time, and may write a last time until then."""


class WandB:
    """A sink that writes each step as a row of a Weights & Biases run. It needs the package `wandb`."""

    def __init__(
        self,
        project: str | None = None,
        *,
        id: str | None = None,
        dir: str | os.PathLike[str] = ".",
        mode: str = "online",
        settings: dict[str, Any] | None = None,
        **init: Any,
    ) -> None:
        """Takes the arguments of `wandb.init`. An `id` must belong to one job, because another job with the same id
        would take its steps for written; by default each start of a job has its own. Offline, every node that may hold
        the rank must see `dir`."""
        self.place = f"{project or 'wandb'}, {mode}"
        self._id, self._dir, self._settings = id, Path(dir), settings or {}
        self._offline = mode == "offline"
        self._init: dict[str, Any] = {"project": project, "mode": mode, **init}
        self._run: Any = None
        self._name = ""
        self._lock: int | None = None
        self._files: dict[Path, HistoryFile] = {}
        self._next = 0  # the first step that was not handed over
        self._handed: deque[tuple[float, int]] = deque()  # online: time and first step of each hand-over

    def open(self, run: Run) -> None:
        wandb = _import_wandb()
        self.close()
        self._name = self._id or f"{run.id}-rank{run.rank}"
        self._dir.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._dir / f"deadpool-{self._name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with locked(self._lock):
            self._next = self._settled_steps() if self._offline else 0
            settings = self._all_settings(wandb)
            self._run = wandb.init(id=self._name, dir=self._dir, resume="allow", settings=settings, **self._init)
            if not self._offline:
                self._next = int(self._run.step)

    def write(self, entries: Sequence[Entry]) -> int | None:
        assert self._lock is not None
        with locked(self._lock):
            if self._offline:
                self._next = max(self._next, self._steps_on_disk())
            new = [entry for entry in entries if entry.step >= self._next]
            for entry in new:
                self._run.log(entry.values, step=entry.step, commit=True)
            if new:
                self._handed.append((time.monotonic(), new[0].step))
                self._next = new[-1].step + 1
        return self._steps_on_disk() if self._offline else self._steps_sent()

    def close(self) -> None:
        """Finishes the run; wandb has written and sent everything afterwards."""
        run, self._run = self._run, None
        lock, self._lock = self._lock, None
        self._files, self._handed = {}, deque()
        try:
            if run is not None:
                run.finish()
        finally:
            if lock is not None:
                os.close(lock)

    def _all_settings(self, wandb: Any) -> Any:
        """Leaves the console to the trainer, and has rows written to disk soon if this version of wandb can do that."""
        settings: dict[str, Any] = {"console": "off"}
        if "x_transaction_log_flush_interval" in getattr(wandb.Settings, "model_fields", {}):
            settings["x_transaction_log_flush_interval"] = _FLUSH_S
        return wandb.Settings(**{**settings, **self._settings})

    def _settled_steps(self) -> int:
        if self._steps_on_disk() or self._files:
            time.sleep(_SETTLE_S)
        return self._steps_on_disk()

    def _steps_on_disk(self) -> int:
        """Returns the first step that no file of this run has."""
        for path in (self._dir / "wandb").glob(f"offline-run-*-{self._name}/run-{self._name}.wandb"):
            self._files.setdefault(path, HistoryFile(path))
        return max((file.read() + 1 for file in self._files.values()), default=0)

    def _steps_sent(self) -> int | None:
        """Returns the first step that is not taken for sent yet, or None if all are."""
        while self._handed and self._handed[0][0] < time.monotonic() - _SENT_S:
            self._handed.popleft()
        return self._handed[0][1] if self._handed else None


def _import_wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(f"WandB needs the package wandb: install torch-deadpool[wandb] ({error})") from error
    return wandb
