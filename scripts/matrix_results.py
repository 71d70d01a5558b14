"""Outcomes of the cells of a matrix, in a file to which a pytest plugin appends them. Owns that file's format.

A cell is a test that compares a job with an undisturbed run; a test whose name ends in `refused` is a refusal: the job
must end with the reason why it cannot be protected. In cells of the sample (`test_audited...`) a recovery is played
before the fault, and they record its verdict.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it is not installed yet when scripts/frameworks begins
    import pytest


class Results:
    def __init__(self, path: Path, sources: str, versions: dict[str, str], *, fresh: bool) -> None:
        """Begins anew if the file is of other sources, or of other versions of the packages."""
        self.path, self.versions = path, ", ".join(f"{name} {each}" for name, each in versions.items())
        begin = {"sources": sources, "versions": versions}
        self.outcomes: dict[str, dict[str, Any]] = {}
        self._ids: list[str] = []
        self._read = 0
        path.parent.mkdir(exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        if fresh or not lines or json.loads(lines[0]) != begin:
            path.write_text(json.dumps(begin) + "\n")
        list(self.follow())

    def follow(self) -> Iterator[str]:
        """What was appended since, as lines for a reader."""
        with self.path.open() as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition("\n")
        self._read += len(whole.encode()) + bool(whole)
        for line in whole.splitlines():
            entry = json.loads(line)
            self._ids = entry.get("ids", self._ids)
            if "id" in entry:
                self.outcomes[entry["id"]] = entry
                done = len(self._ids) - len(self.left)
                audit = f", audit: {entry['audit']}" if "audit" in entry else ""
                told = f"{entry['outcome']}{audit}, {entry['seconds']:.0f} s, {_short(entry['id'])}"
                yield f"{done} of {len(self._ids)}: {told}"

    @property
    def left(self) -> list[str]:
        return [each for each in self._ids if each not in self.outcomes]

    @property
    def is_complete(self) -> bool:
        """Its cells are known, and each has run."""
        return bool(self._ids) and not self.left

    @property
    def failed(self) -> list[str]:
        return [name for name in self._ids if self.outcomes.get(name, {}).get("outcome") in ("differed", "failed")]

    def row(self) -> tuple[str, ...]:
        """Cells, passed, differed, failed, refusals, audits that found the script exact, not run, time."""
        refusals = [name for name in self._ids if _is_refusal(name)]
        cells = [name for name in self._ids if not _is_refusal(name)]
        counted = [self._count(cells, outcome) for outcome in ("passed", "differed", "failed")]
        refused = f"{self._count(refusals, 'passed')} of {len(refusals)}"
        verdicts = [found["audit"] for name in cells if "audit" in (found := self.outcomes.get(name, {}))]
        audited = f"{verdicts.count('exact')} of {len(verdicts)}"
        idle = len(self.left) + self._count(self._ids, "skipped")
        seconds = sum(self.outcomes[name]["seconds"] for name in self._ids if name in self.outcomes)
        return (*map(str, (len(cells), *counted)), refused, audited, str(idle), f"{seconds / 60:.1f} min")

    def _count(self, names: list[str], outcome: str) -> int:
        return sum(self.outcomes.get(name, {}).get("outcome") == outcome for name in names)


def _is_refusal(name: str) -> bool:
    return "refused" in name.partition("[")[0]


def _is_of_sample(name: str) -> bool:
    return "::test_audited" in name.partition("[")[0]


def _short(name: str) -> str:
    return name.rpartition("::")[2]


# The plugin, in pytest's process.


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    passed = {entry["id"] for entry in _entries() if entry.get("outcome") == "passed"}
    wanted = [item for item in items if _is_of_sample(item.nodeid) or "MATRIX_SAMPLE" not in os.environ]
    if getattr(config, "workerinput", {"workerid": "gw0"})["workerid"] == "gw0":  # of several processes the first one
        _append({"ids": [item.nodeid for item in wanted]})
    chosen = [item for item in wanted if item.nodeid not in passed]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


_phases: dict[str, list[pytest.TestReport]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    phases = _phases.setdefault(report.nodeid, [])
    phases.append(report)
    if report.when == "teardown":
        seconds = sum(each.duration for each in _phases.pop(report.nodeid))
        entry = {"id": report.nodeid, "outcome": _outcome(phases), "seconds": round(seconds, 2)}
        _append(entry | {name: value for name, value in report.user_properties if name == "audit"})


def _outcome(phases: list[pytest.TestReport]) -> str:
    for report in phases:
        if report.failed:
            marked = [line for line in report.longreprtext.splitlines() if line.startswith(">")]
            is_difference = "differences(" in marked[-1] if marked else False  # not what was called in that line
            return "differed" if is_difference else "failed"
    return "skipped" if any(report.skipped for report in phases) else "passed"


def _entries() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(os.environ["MATRIX_RESULTS"]).read_text().splitlines()]


def _append(entry: dict[str, Any]) -> None:
    with Path(os.environ["MATRIX_RESULTS"]).open("a") as file:
        print(json.dumps(entry), file=file, flush=True)
