"""The sink for Weights & Biases, and its files.

`HistoryFile` reads which steps are in a run file of wandb (`run-ID.wandb`), also while the file grows.

The file is a log in LevelDB's format: a header of 7 bytes, then blocks of 32 KiB that hold pieces of records. A
record is one of wandb's protobuf messages.

`WandB`: a sink that writes every entry as a row of a Weights & Biases run, at its step. It needs the package
`wandb`.

wandb hands rows to a helper process, which writes and sends them later and ends with the trainer. So a row that was
handed over is not durable yet. Offline, the run's files show which steps it has, and a row is durable once it is in
them. Online, the server tells the next step when the run is opened (`run.step`), and a row is taken for durable a
while after it was handed over. The server accepts only growing steps, so it drops a row that comes twice.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deadpool.errors import ConfigError
from deadpool.journal.entry import Entry, Run
from deadpool.journal.jsonl import locked

_FILE_HEADER = 7
_BLOCK = 32 << 10
_PIECE_HEADER = 7  # checksum, length, kind
_FULL, _FIRST, _LAST = 1, 2, 4


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
