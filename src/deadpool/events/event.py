"""Events: what a process decided or saw, and because of which cause. A job has one log, which its coordinator writes
(`log.py`).

Commands, the demo and the benchmarks read these records, so that no program has to keep a second clock or search other
logs for a time. An `Event` is one record; an `EventType` says what all events of one name mean, to a program that reads
the log and to a person who operates the job. Which types there are is in `types/`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMON_FIELDS = {
    "t": "wall-clock time in seconds, by the clock of the process that saw it",
    "what": "the name of the event",
    "cause": "what it happened because of: `start`, `fault-1`, `drain-1`; `deadpool show story --cause` has its events",
    "generation": "the generation of the job at that time, as TERM.NUMBER",
    "node": "the node that reported it, where an agent or a trainer did",
    "rank": "the rank of the trainer that reported it, where a trainer did",
    "trainer": "the name of that trainer process; its log is `logs/TRAINER.log` in the run folder",
}
"""Fields that the emitting process adds by itself. An empty one is left out."""


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
        """The JSON form. Empty fields are left out, and details stand beside the others."""
        head = {"t": self.t if self.t is not None else t, "what": self.what}
        body = {
            "cause": self.cause,
            "generation": self.generation,
            "node": self.node,
            "rank": self.rank,
            "step": self.step,
        }
        return {**head, **{k: v for k, v in body.items() if v is not None}, **self.detail}


def read_events(path: Path) -> list[dict[str, Any]]:
    """All complete records of a log, ordered by time. What is no record, as a line that was cut short by a
    kill, is left out."""
    return sorted(_complete_lines(path), key=lambda record: record.get("t", 0.0))


def _complete_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        record = None
        with contextlib.suppress(ValueError):
            record = json.loads(line)
        if isinstance(record, dict) and "what" in record and isinstance(record.get("t", 0.0), int | float):
            yield record


def story(records: Iterable[dict[str, Any]], cause: str) -> list[dict[str, Any]]:
    """All records that have this cause."""
    return [record for record in records if record.get("cause") == cause]


def causes(records: Iterable[dict[str, Any]]) -> list[str]:
    """All causes, in the order in which they appear."""
    return list(dict.fromkeys(record["cause"] for record in records if record.get("cause")))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """`console` is the sentence that the coordinator prints, with fields in braces; empty: the event is only logged."""

    name: str
    meaning: str
    action: str
    fields: Mapping[str, str] = field(default_factory=dict)
    console: str = ""
    rank_0_only: bool = False
    """Every rank reports the same: the console shows only the report of rank 0."""
    once: bool = False
    """Any rank may report it: the console shows the same sentence only once."""

    def sentence(self, record: Mapping[str, Any]) -> str | None:
        """None: this record is not for the console."""
        if not self.console or (self.rank_0_only and record.get("rank") != 0):
            return None
        return self.console.format_map(_Shown(record))


class _Shown(dict[str, Any]):
    """Fields that are empty in a record were left out of it."""

    def __missing__(self, name: str) -> str:
        return "(none)"
