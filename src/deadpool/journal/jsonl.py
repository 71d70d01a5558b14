"""Journals as lines of JSON: the sink that writes them, and the reader.

`Jsonl` writes one line per step: `{"run": ..., "rank": 0, "step": 12, "time": ..., "values": {...}}`. The file itself
shows which steps it has. A writer takes a lock, since the old process of a rank may wake up and write too, and reads
what other writers have added since its last write. It cuts off an incomplete last line, whose writer was killed, and
appends the missing steps.

`JournalReader` reads the files of several nodes as one journal, with every step of a rank once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.config.environment import JOURNAL_VARIABLE
from deadpool.journal.entry import Entry, Run

_TIMEOUT_S = 2.0
_POLL_S = 0.005

PATTERN = "*.jsonl"


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Holds an exclusive lock on the file. Raises BlockingIOError if another process, which may have been stopped while
    it wrote, keeps the lock for long: a thread that waited here for ever could not be ended."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BlockingIOError("another process holds the lock; was it stopped while it wrote?") from None
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


_BLOCK = 1 << 20


class Jsonl:
    """A sink that writes one line of JSON per step to a file."""

    def __init__(self, path: str | os.PathLike[str], *, mode: int = 0o666) -> None:
        """Writes to the file at `path`, which several ranks may share. If the file does not exist, it is made with
        `mode`, to which the umask applies."""
        self.place = str(path)
        self._path, self._mode = Path(path), mode
        self._fd: int | None = None
        self._prefix = b""
        self._end = 0  # how much of the file was read
        self._next = 0  # the first step that is not in it

    def open(self, run: Run) -> None:
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, self._mode)
        _sync_folder(self._path.parent)
        self._prefix = _head(run).encode()
        self._end = self._next = 0

    def write(self, entries: Sequence[Entry]) -> int | None:
        fd = self._fd
        assert fd is not None
        with locked(fd):
            self._require_in_place(fd)
            self._catch_up(fd)
            new = [entry for entry in entries if entry.step >= self._next]
            if new:
                self._append(fd, b"".join(self._line(entry) for entry in new))
                self._next = new[-1].step + 1
        return None

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _line(self, entry: Entry) -> bytes:
        return self._prefix + f'{entry.step},"time":{entry.time!r},"values":{entry.text}}}\n'.encode()

    def _require_in_place(self, fd: int) -> None:
        """Raises if the file was moved away: other writers then write to a new file, and so must this one."""
        here, there = os.fstat(fd), self._path.stat()
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise FileNotFoundError(f"{self.place} is another file now")

    def _catch_up(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size == self._end:
            return
        if size < self._end:
            self._end = 0  # the file was truncated: read it from its beginning
        size = _cut_torn_line(fd, size)
        found = _last_line_with(fd, self._prefix, self._end, size)
        if found is not None:
            self._next = max(self._next, int(os.pread(fd, 24, found + len(self._prefix)).split(b",")[0]) + 1)
        self._end = size

    def _append(self, fd: int, data: bytes) -> None:
        """Appends all of the data, or none of it and raises: the next writer could not continue half a line."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, self._end)
            raise
        self._end += len(data)


def _head(run: Run) -> str:
    return f'{{"run":{json.dumps(run.id)},"rank":{run.rank},"step":'


def _cut_torn_line(fd: int, size: int) -> int:
    """Cuts off an incomplete last line and returns the length of the file afterwards."""
    if size == 0 or os.pread(fd, 1, size - 1) == b"\n":
        return size
    keep = _find_last(fd, b"\n", 0, size) + 1
    os.ftruncate(fd, keep)
    return keep


def _last_line_with(fd: int, prefix: bytes, begin: int, end: int) -> int | None:
    """Returns the offset of the last line that starts with `prefix`; `begin` must be the start of a line."""
    found = _find_last(fd, b"\n" + prefix, begin, end)
    if found >= 0:
        return found + 1
    return begin if os.pread(fd, len(prefix), begin) == prefix else None


def _find_last(fd: int, wanted: bytes, begin: int, end: int) -> int:
    """Returns the last offset of `wanted`, or -1. It reads from the end, so that it reads little of a long file."""
    stop = end
    while stop > begin:
        start = max(begin, stop - _BLOCK)
        index = os.pread(fd, stop - start, start).rfind(wanted)
        if index >= 0:
            return start + index
        stop = start + len(wanted) - 1 if start > begin else begin
    return -1


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FOLDER = "deadpool-journal"


def default_sink(rank: int) -> Jsonl:
    """Returns the sink of a job that names none: a file in the folder that the agent names, or under torchrun in a
    folder of the working directory. Only the owner can read it, like the rest of a run folder."""
    return Jsonl(Path(os.environ.get(JOURNAL_VARIABLE, _FOLDER)) / f"rank-{rank:05d}.jsonl", mode=0o600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    run: str
    rank: int
    step: int
    time: float
    values: dict[str, Any]


@dataclass(slots=True)
class JournalReader:
    """Reads the files in some folders, or single files, as they grow. Nodes without a shared folder write one file
    each. A line that a node wrote before it could report it as delivered is in the next node's file too; such
    duplicates are left out."""

    folders: list[Path]
    _offsets: dict[Path, int] = field(default_factory=dict)
    _known: set[tuple[str, int, int]] = field(default_factory=set)

    def read(self) -> list[Line]:
        """Returns the lines that were added since the last call."""
        lines = [line for path in self._files() for line in self._new_lines(path)]
        return [line for line in lines if self._is_new(line)]

    def _files(self) -> Iterator[Path]:
        for folder in self.folders:
            yield from [folder] if folder.is_file() else sorted(folder.glob(PATTERN))

    def _new_lines(self, path: Path) -> Iterator[Line]:
        """Yields whole lines only: the last line may still be being written, or its writer was killed."""
        begin = self._offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = begin + len(whole)
        for text in whole.splitlines():
            line = _parse(text)
            if line is not None:
                yield line

    def _is_new(self, line: Line) -> bool:
        key = (line.run, line.rank, line.step)
        is_new = key not in self._known
        self._known.add(key)
        return is_new


def newest_runs(lines: Iterable[Line]) -> list[Line]:
    """Returns the lines of each rank's newest run, by step. A folder may also hold the lines of earlier runs."""
    found = list(lines)
    newest = {line.rank: line.run for line in sorted(found, key=lambda line: line.time)}
    return sorted((each for each in found if each.run == newest[each.rank]), key=lambda line: (line.step, line.rank))


def _parse(text: bytes) -> Line | None:
    """Returns None for a line that another program wrote."""
    try:
        body = json.loads(text)
        return Line(run=body["run"], rank=body["rank"], step=body["step"], time=body["time"], values=body["values"])
    except (ValueError, KeyError, TypeError):
        return None
