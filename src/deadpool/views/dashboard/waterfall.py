"""One fault in detail: its phases one below the other, when each rank came to which point, and what the logs say."""

from __future__ import annotations

from typing import Any

from deadpool.events.story import PHASES
from deadpool.events.types import BY_NAME
from deadpool.views.dashboard.history import Record
from deadpool.views.dashboard.interruptions import Interruption

MARKS = ("aborted", "unwound", "built", "restored", "rebuilt", "resumed")
MEANINGS = {
    "detect": "from the fault until the coordinator knew of it",
    "unwind": "every survivor comes back to its step boundary",
    "plan": "who holds which rank, and from which version",
    "prepare": "lost ranks are built, and state is loaded",
    "connect": "all process groups are rebuilt",
    "redo": "until every rank has done a new step",
}
_RANKS_SHOWN = 64


def waterfall(fault: Interruption, records: list[Record]) -> dict[str, Any]:
    """`records` are those of this cause, ordered by time."""
    rows = _rank_rows(fault, records)
    return {
        **fault.facts(),
        "phases": _phases(fault),
        "marks": MARKS,
        "rows": rows[:_RANKS_SHOWN],
        "row_count": len(rows),
        "story": [_line(record, fault.began) for record in records if _is_told(record, fault)],
    }


def _is_told(record: Record, fault: Interruption) -> bool:
    """What the coordinator did until the job had recovered; what comes later has this cause until the next fault."""
    return record.get("rank") is None and (fault.ended is None or float(record["t"]) <= fault.ended)


def _phases(fault: Interruption) -> list[dict[str, Any]]:
    begin, found = 0.0, []
    for name in PHASES:
        if name in fault.phases_s:
            seconds = fault.phases_s[name]
            found.append({"name": name, "begin": begin, "seconds": seconds, "meaning": MEANINGS[name]})
            begin += seconds
    return found


def _rank_rows(fault: Interruption, records: list[Record]) -> list[dict[str, Any]]:
    """Lost ranks come first, then those that took longest."""
    rows: dict[int, dict[str, Any]] = {}
    for record in records:
        if record["what"] in MARKS and isinstance(record.get("rank"), int):
            row = rows.setdefault(record["rank"], {"rank": record["rank"], "trainer": "", "at": {}})
            row["at"][record["what"]] = float(record["t"]) - fault.began
            row["trainer"] = record.get("trainer") or row["trainer"]
    lost = set(fault.ranks)
    for rank, row in rows.items():
        row["lost"] = rank in lost
    return sorted(rows.values(), key=lambda row: (not row["lost"], -max(row["at"].values()), row["rank"]))


def _line(record: Record, began: float) -> dict[str, Any]:
    kind = BY_NAME.get(record["what"])
    text = (kind.sentence(record) or kind.meaning) if kind is not None else record["what"]
    return {"at": float(record["t"]) - began, "what": record["what"], "text": text[:400]}


def trainers_of(fault: Interruption, earlier: dict[int, str], records: list[Record]) -> list[tuple[int, str, str]]:
    """Rank, trainer and part played: those that were lost, then those that took their ranks. `earlier` says which
    trainer held a rank before the fault."""
    lost = [(rank, earlier[rank], "lost") for rank in fault.ranks if rank in earlier]
    gone = {trainer for _, trainer, _ in lost}
    new = {
        (record["rank"], record["trainer"], "took over")
        for record in records
        if record.get("rank") in fault.ranks and record.get("trainer") and record["trainer"] not in gone
    }
    return lost + sorted(new)
