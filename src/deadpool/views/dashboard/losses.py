"""Follows one loss in the journal of a job: that of the first rank which logs one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deadpool.journal.reading import PATTERN, JournalReader, Line
from deadpool.views.dashboard.view import Losses

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
