"""What happened, as records: who decided what, because of which cause. One log per job, written by the coordinator.

The CLI, the demo and the benchmarks read these records; nobody keeps a second clock or greps a log for a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from deadpool.owner_only import open_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One decision or observation. `t` is stamped by the process that saw it, in seconds of wall-clock time."""

    what: str
    cause: str | None = None
    generation: str | None = None
    node: str | None = None
    rank: int | None = None
    step: int | None = None
    t: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def record(self, *, t: float | None = None) -> dict[str, Any]:
        """The JSON form: empty fields left out, details beside the rest."""
        head = {"t": self.t if self.t is not None else t, "what": self.what}
        body = {
            "cause": self.cause,
            "generation": self.generation,
            "node": self.node,
            "rank": self.rank,
            "step": self.step,
        }
        return {**head, **{k: v for k, v in body.items() if v is not None}, **self.detail}


class EventLog:
    """Appends records to a JSONL file, flushed line by line so that a killed job keeps its story."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def start(self) -> None:
        self._file = open_private(self._path, "a")

    def write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_events(path: Path) -> list[dict[str, Any]]:
    """All complete records of a log, in order of time; a half-written last line is left out."""
    return sorted(_complete_lines(path), key=lambda record: record.get("t") or 0.0)


def _complete_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def story(records: Iterable[dict[str, Any]], cause: str) -> list[dict[str, Any]]:
    """Everything that happened because of one cause."""
    return [record for record in records if record.get("cause") == cause]


def causes(records: Iterable[dict[str, Any]]) -> list[str]:
    """Causes in order of appearance."""
    return list(dict.fromkeys(record["cause"] for record in records if record.get("cause")))
