"""What an event is, to a program that reads the log and to a person who operates the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
