"""Events: what a process decided or saw, and because of which cause. A job has one log, which its coordinator writes
(`event_log`).

Commands, the demo and the benchmarks read these records, so that no program has to keep a second clock or search other
logs for a time. Which events there are, and what each one means, is in `event_types`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
