"""What the page reads of a run folder.

`RunFiles` reads a job's run folder as it grows: the event log, one loss of the journal, and logs of trainers on
demand.

`LossReader` follows one loss in the journal of a job: that of the first rank which logs one.

`waterfall` and `trainers_of`: one fault in detail: its phases one below the other, when each rank came to which
point, and what the logs say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.events.story import PHASES
from deadpool.events.types import BY_NAME
from deadpool.journal.jsonl import PATTERN, JournalReader, Line
from deadpool.views.dashboard.history import Interruption, JobHistory, Record, interruptions
from deadpool.views.dashboard.view import Losses, RunFacts

_TRIED = 64
"""Files that are looked into from each end: only the first or the last stage of a pipeline has a loss."""
_FIRST_BYTES = 65536


class LossReader:
    def __init__(self, folder: Path, into: Losses) -> None:
        self._folder, self._losses = folder, into
        self._reader: JournalReader | None = None
        self._run = ""
        self._last: Line | None = None

    def read(self) -> None:
        """Reads what was added since the last call."""
        if self._reader is None:
            self._choose()
        if self._reader is not None:
            for line in self._reader.read():
                self._add(line)

    def _choose(self) -> None:
        paths = sorted(self._folder.glob(PATTERN)) if self._folder.is_dir() else []
        tried = paths if len(paths) <= 2 * _TRIED else paths[:_TRIED] + paths[-_TRIED:]
        for path in tried:
            key = loss_key(_first_values(path))
            if key:
                self._losses.key, self._reader = key, JournalReader([path])
                return

    def _add(self, line: Line) -> None:
        """A later run in the same file begins anew. A step that was redone was logged once."""
        if line.run != self._run:
            self._run, self._last = line.run, None
            self._losses.by_step.clear()
            self._losses.step_times.clear()
        value = flattened(line.values).get(self._losses.key)
        if value is not None:
            self._losses.by_step.add(line.step, value)
        if self._last is not None and line.step > self._last.step and line.time > self._last.time:
            seconds = (line.time - self._last.time) / (line.step - self._last.step)
            self._losses.step_times.add(line.time, seconds)
        self._last = line


def loss_key(values: dict[str, Any]) -> str:
    """`loss` if there is one, else a key that ends so, else the first that has it in its name."""
    keys = list(flattened(values))
    ranked = [[key for key in keys if key == "loss"], [key for key in keys if key.endswith("loss")]]
    ranked.append([key for key in keys if "loss" in key.lower()])
    return next((found[0] for found in ranked if found), "")


def flattened(values: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers by key; a/b if nested."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= flattened(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
    return found


def _first_values(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            line = file.readline(_FIRST_BYTES)
        values = json.loads(line)["values"]
        return values if isinstance(values, dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


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


_EXCERPT_BYTES = 4000
_EXCERPTS = 6


@dataclass(slots=True)
class RunFiles:
    folder: Path
    history: JobHistory = field(default_factory=JobHistory)
    losses: Losses = field(default_factory=Losses)
    _offset: int = 0
    _reader: LossReader | None = None

    def refresh(self) -> bool:
        """Reads what was added since the last call. Returns whether there were events."""
        self.history.per_node = int(self._announced().get("nproc_per_node") or 1)
        before = self._offset
        for line in self._new_lines():
            self._add(line)
        if self._reader is None:
            self._reader = LossReader(self.folder / "journal", self.losses)
        self._reader.read()
        return self._offset != before

    def job(self) -> RunFacts:
        announced = self._announced()
        return RunFacts(
            name=self.folder.resolve().name,
            settings=announced.get("settings") or {},
            versions=announced.get("versions") or {},
        )

    def fault(self, cause: str) -> dict[str, Any] | None:
        """One fault in detail. Its records are read from the log again."""
        found = next((each for each in interruptions(self.history) if each.cause == cause), None)
        if found is None:
            return None
        records, earlier = self._records_of(found)
        return {**waterfall(found, records), "logs": list(self._excerpts(found, earlier, records))}

    def _new_lines(self) -> Iterator[bytes]:
        """Whole lines only: the last one may still be being written."""
        path = self.folder / "events.jsonl"
        try:
            with path.open("rb") as file:
                if path.stat().st_size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    yield line
        except FileNotFoundError:
            return

    def _add(self, line: bytes) -> None:
        """Records come from nodes: one that makes no sense is no reason to show nothing of the job."""
        try:
            self.history.add(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            return

    def _announced(self) -> dict[str, Any]:
        try:
            found = json.loads((self.folder / "job.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    def _records_of(self, fault: Interruption) -> tuple[list[Record], dict[int, str]]:
        """The records of this cause, ordered by time, and which trainer held each of its ranks before."""
        records: list[Record] = []
        earlier: dict[int, str] = {}
        cause, trainer = json.dumps(fault.cause).encode(), b'"trainer"'
        with (self.folder / "events.jsonl").open("rb") as file:
            for line in file:
                if cause not in line and (trainer not in line or records):
                    continue
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if record.get("cause") == fault.cause:
                    records.append(record)
                elif not records and record.get("rank") in fault.ranks and record.get("cause"):
                    earlier[record["rank"]] = str(record.get("trainer"))
        return sorted(records, key=lambda each: float(each.get("t") or 0.0)), earlier

    def _excerpts(
        self, fault: Interruption, earlier: dict[int, str], records: list[Record]
    ) -> Iterator[dict[str, Any]]:
        """The ends of the logs of trainers that were lost, and of those that took over. A node that shares no run
        folder with the coordinator has its logs elsewhere."""
        for rank, trainer, part in trainers_of(fault, earlier, records)[:_EXCERPTS]:
            text = self._end_of_log(trainer)
            if text:
                yield {"rank": rank, "trainer": trainer, "part": part, "text": text}

    def _end_of_log(self, trainer: str) -> str:
        """Names come from nodes, so one that leads out of the folder of logs is not followed."""
        logs = (self.folder / "logs").resolve()
        path = (logs / f"{trainer}.log").resolve()
        if path.parent != logs:
            return ""
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _EXCERPT_BYTES))
                data = file.read(_EXCERPT_BYTES)
        except OSError:
            return ""
        text = data.decode(errors="replace")
        return text if size <= _EXCERPT_BYTES else text.partition("\n")[2]
