"""Finds the log of a rank, also around a fault, though ranks move from process to process and from node to node.

Events say which trainer held which rank when. Marks in the logs say where in them a fault was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.control.trainers.log import FAULTS, KEPT_FILES, mark_of
from deadpool.errors import ConfigError

Record = dict[str, Any]
_OF_HOLDERS = {"slots_allocated", "trainer_restarts", "unwound", "aborted", "built", "restored", "rebuilt", "resumed"}
"""Events that a trainer reports only of the rank that it holds: a rehearsal has other ones."""
_BEGINS = {"fault", "handover", "reconfiguration", "fence"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    trainer: str
    path: Path | None  # None: it is not in this folder
    lines: tuple[str, ...] = ()
    at_mark: bool = False  # false: these are the last lines


def holders(records: list[Record], rank: int, around: str | None) -> list[str]:
    """The trainers whose logs tell of this rank: the one that holds it, or those before and after that fault."""
    held = [r for r in records if r["what"] in _OF_HOLDERS and r.get("rank") == rank and r.get("trainer")]
    if not held:
        raise ConfigError(
            f"rank={rank} was held by no trainer, as far as the events say: give another rank, or a trainer"
        )
    if around is None:
        return [held[-1]["trainer"]]
    began = next((r["t"] for r in records if r.get("cause") == around and r["what"] in _BEGINS), None)
    if began is None:
        known = sorted({r["cause"] for r in records if r["what"] in _BEGINS and r.get("cause")})
        raise ConfigError(f"around={around!r} is no fault of this job: known are {', '.join(known) or 'none'}")
    before = [r["trainer"] for r in held if r["t"] <= began]
    after = [r["trainer"] for r in held if r["t"] > began and r.get("cause") == around]
    return list(dict.fromkeys([*before[-1:], *after]))


def excerpt(logs: Path, trainer: str, around: str | None, *, lines: int) -> Excerpt:
    """The lines before and after the mark of that fault. A trainer that died in it has no mark: then the last ones."""
    files = _files(logs, trainer, around)
    if around is not None:
        marked, found = _around_mark(files, mark_of(around), lines)
        if marked is not None:
            return Excerpt(trainer=trainer, path=marked, lines=tuple(found), at_mark=True)
    last = deque((line for path in files[-2:] for line in _lines(path)), maxlen=lines)
    return Excerpt(trainer=trainer, path=files[-1] if files else None, lines=tuple(last))


def _files(logs: Path, trainer: str, around: str | None) -> list[Path]:
    """Oldest first. Those that were kept with the fault are others only where rotation has dropped them."""
    kept = sorted((logs / FAULTS / around).glob(f"{trainer}.*.log")) if around is not None else []
    rotated = [logs / f"{trainer}.log.{number}" for number in range(KEPT_FILES, 0, -1)]
    own = [path for path in (*rotated, logs / f"{trainer}.log") if path.exists()]
    same = {path.stat().st_ino for path in own}
    return [*(path for path in kept if path.stat().st_ino not in same), *own]


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            yield line.rstrip("\n")


def _around_mark(files: list[Path], mark: str, count: int) -> tuple[Path | None, list[str]]:
    """From so many lines before the first such mark to so many after the last one, and the file of the first one. A
    new file may have begun between two of these lines."""
    before: deque[str] = deque(maxlen=count)
    found: list[str] = []
    marked, after = None, 0
    for path, line in ((each, line) for each in files for line in _lines(each)):
        if line.startswith("[deadpool ") and mark in line:
            found += [*before, line]
            before.clear()
            marked, after = marked or path, count
        elif after:
            found.append(line)
            after -= 1
        else:
            before.append(line)
    return marked, found
