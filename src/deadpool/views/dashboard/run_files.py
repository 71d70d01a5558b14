"""Reads a job's run folder as it grows: the event log, one loss of the journal, and logs of trainers on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.views.dashboard.history import History, Record
from deadpool.views.dashboard.interruptions import Interruption, interruptions
from deadpool.views.dashboard.losses import LossReader
from deadpool.views.dashboard.view import Job, Losses
from deadpool.views.dashboard.waterfall import trainers_of, waterfall

_EXCERPT_BYTES = 4000
_EXCERPTS = 6


@dataclass(slots=True)
class RunFiles:
    folder: Path
    history: History = field(default_factory=History)
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

    def job(self) -> Job:
        announced = self._announced()
        return Job(
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
