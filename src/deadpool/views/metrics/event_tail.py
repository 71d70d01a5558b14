"""Reads a job's event log as it grows: each call returns the records that were added since the last one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class EventTail:
    """Whole lines only: the last one may still be being written, or its writer was killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            if self._path.stat().st_size < self._offset:
                self._offset = 0  # another file has its name now
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                record = _parse(line)
                if record is not None:
                    yield record


def _parse(line: bytes) -> dict[str, Any] | None:
    """None: a line that was cut short by a kill, and that the next coordinator has continued."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "what" in record else None
