"""Reads which steps are in a run file of wandb (`run-ID.wandb`), also while the file grows.

The file is a log in LevelDB's format: a header of 7 bytes, then blocks of 32 KiB that hold pieces of records. A record
is one of wandb's protobuf messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
