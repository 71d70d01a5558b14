"""Reads the files of Jsonl sinks. The files of several nodes are read as one journal with every step of a rank once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATTERN = "*.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    run: str
    rank: int
    step: int
    time: float
    values: dict[str, Any]


@dataclass(slots=True)
class JournalReader:
    """Reads the files in some folders, or single files, as they grow. Nodes without a shared folder write one file
    each. A line that a node wrote before it could report it as delivered is in the next node's file too; such
    duplicates are left out."""

    folders: list[Path]
    _offsets: dict[Path, int] = field(default_factory=dict)
    _known: set[tuple[str, int, int]] = field(default_factory=set)

    def read(self) -> list[Line]:
        """Returns the lines that were added since the last call."""
        lines = [line for path in self._files() for line in self._new_lines(path)]
        return [line for line in lines if self._is_new(line)]

    def _files(self) -> Iterator[Path]:
        for folder in self.folders:
            yield from [folder] if folder.is_file() else sorted(folder.glob(PATTERN))

    def _new_lines(self, path: Path) -> Iterator[Line]:
        """Yields whole lines only: the last line may still be being written, or its writer was killed."""
        begin = self._offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = begin + len(whole)
        for text in whole.splitlines():
            line = _parse(text)
            if line is not None:
                yield line

    def _is_new(self, line: Line) -> bool:
        key = (line.run, line.rank, line.step)
        is_new = key not in self._known
        self._known.add(key)
        return is_new


def newest_runs(lines: Iterable[Line]) -> list[Line]:
    """Returns the lines of each rank's newest run, by step. A folder may also hold the lines of earlier runs."""
    found = list(lines)
    newest = {line.rank: line.run for line in sorted(found, key=lambda line: line.time)}
    return sorted((each for each in found if each.run == newest[each.rank]), key=lambda line: (line.step, line.rank))


def _parse(text: bytes) -> Line | None:
    """Returns None for a line that another program wrote."""
    try:
        body = json.loads(text)
        return Line(run=body["run"], rank=body["rank"], step=body["step"], time=body["time"], values=body["values"])
    except (ValueError, KeyError, TypeError):
        return None
