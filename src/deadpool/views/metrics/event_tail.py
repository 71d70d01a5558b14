"""Figures of nodes and events, as they come.

`EventTail` reads a job's event log as it grows: each call returns the records that were added since the last one.

`NodeFacts`: what one agent exposes: figures of its own node, each from the part of the agent that has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.views.metrics.recovery_fold import Histogram


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    node: str
    connected: bool
    step_times: Mapping[int, Histogram]  # by rank
    trainers: Mapping[str, int]  # processes by state
    arena_bytes: int
    sent_bytes: int
    sent_seconds: float
    events: Mapping[str, int]  # that this agent has reported, by name
