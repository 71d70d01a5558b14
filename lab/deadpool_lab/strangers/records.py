"""What a run of a generated script left: its records, its files, and what DeadPool said of it.

Records of steps tell whether two runs of a script are equal bit for bit. `lost_files` tells whether a run has all the
files, and all their lines, that another run of the same script has. `Verdict` and `AuditResult` are what DeadPool has
said of a script, and whether it said so before the first fault.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

_OF_A_STEP = ("loss", "draws", "batch")


@dataclass(slots=True)
class RankRecord:
    """All records of each step, more than one where it was computed again; evaluations; how often `on_final` ran for
    it."""

    steps: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    evaluations: dict[int, str] = field(default_factory=dict)
    finals: Counter[int] = field(default_factory=Counter)
    digest: str | None = None

    @classmethod
    def read(cls, path: Path) -> RankRecord:
        record = cls()
        for line in path.read_text().splitlines() if path.exists() else []:
            if line.endswith("}"):  # else cut short by a kill
                record._add(json.loads(line))
        return record

    def _add(self, line: dict[str, Any]) -> None:
        if "step" in line:
            self.steps.setdefault(line["step"], []).append(line)
        elif "evaluated" in line:
            self.evaluations[line["evaluated"]] = line["score"]
        elif "final" in line:
            self.finals[line["final"]] += 1
        else:
            self.digest = line["digest"]

    def last(self) -> dict[int, dict[str, Any]]:
        return {number: records[-1] for number, records in self.steps.items()}


def read_ranks(folder: Path, world_size: int) -> list[RankRecord]:
    return [RankRecord.read(folder / f"rank{rank}.jsonl") for rank in range(world_size)]


def differences(expected: list[RankRecord], found: list[RankRecord]) -> list[str]:
    """Losses, draws and batches of every rank and step, and every rank's final state."""
    problems = []
    for rank, (one, other) in enumerate(zip(expected, found, strict=True)):
        problems += [f"rank {rank}: {problem}" for problem in _of_rank(one, other)]
    return problems


def _of_rank(one: RankRecord, other: RankRecord) -> list[str]:
    expected, found = one.last(), other.last()
    problems = [
        f"{what} of step {step} differs: {_short(expected.get(step), what)} and {_short(found.get(step), what)}"
        for what in _OF_A_STEP
        for step in sorted(expected.keys() | found.keys())
        if _get(expected.get(step), what) != _get(found.get(step), what)
    ]
    if one.digest is None or one.digest != other.digest:
        problems.append(f"final state differs: {one.digest} and {other.digest}")
    for step in sorted(one.evaluations.keys() & other.evaluations.keys()):
        if one.evaluations[step] != other.evaluations[step]:
            problems.append(f"evaluation after step {step} differs")
    return problems


def _get(record: dict[str, Any] | None, what: str) -> Any:
    return None if record is None else record[what]


def _short(record: dict[str, Any] | None, what: str) -> str:
    return "missing" if record is None else str(record[what])


def recomputed_differently(ranks: list[RankRecord]) -> list[str]:
    """Steps that were computed again with another result."""
    return [
        f"rank {rank}: step {step} was computed {len(records)} times, with different results"
        for rank, record in enumerate(ranks)
        for step, records in sorted(record.steps.items())
        if any(_get(each, what) != _get(records[0], what) for each in records for what in _OF_A_STEP)
    ]


def final_twice(ranks: list[RankRecord]) -> list[str]:
    """A step becomes final only once."""
    return [
        f"rank {rank}: step {step} became final {count} times"
        for rank, record in enumerate(ranks)
        for step, count in sorted(record.finals.items())
        if count > 1
    ]


def lost_files(expected: Path, found: Path, patterns: Sequence[str]) -> list[str]:
    """Other files and lines that were written twice are nobody's loss."""
    problems = []
    for path in sorted(each for pattern in patterns for each in expected.glob(pattern)):
        name = path.relative_to(expected)
        if not (found / name).exists():
            problems.append(f"the file {name} is gone")
        elif path.suffix == ".txt" and (lost := _lines(path) - _lines(found / name)):
            problems.append(f"the file {name} has lost {len(lost)} lines, first: {min(lost)}")
    return problems


def _lines(path: Path) -> set[str]:
    return set(path.read_text(errors="replace").splitlines())


_NAMING = ("inexact_script", "audit_differs", "carried_variables")


def named_rules(events: Sequence[dict[str, Any]]) -> list[str]:
    """Each rule that was named before the first fault, once. Values that are carried have an event in the place of a
    rule, because they may only be printed."""
    rules = []
    for event in events:
        if event["what"] == "fault":
            break
        if event["what"] in _NAMING:
            rules.append(str(event.get("rule") or event["what"]))
    return list(dict.fromkeys(rules))


class Verdict(Enum):
    """What an audit found, that is a recovery that was played."""

    NONE = "none"  # no rank has ended for one
    PASSED = "passed"
    DIFFERS = "differs"
    NO_VERDICT = "no verdict"


@dataclass(frozen=True, slots=True)
class AuditResult:
    verdict: Verdict = Verdict.NONE
    found: str = ""  # what differs, and by which rule

    def __str__(self) -> str:
        if self.verdict is Verdict.NONE:
            return ""
        return f"{self.verdict.value}: {self.found}" if self.found else self.verdict.value


NO_AUDIT = AuditResult()


def audit_result(events: Sequence[dict[str, Any]]) -> AuditResult:
    """Returns the result of the audit that came first."""
    for event in events:
        if event["what"] == "audit_passed":
            return AuditResult(Verdict.PASSED)
        if event["what"] == "audit_differs":
            return AuditResult(Verdict.DIFFERS, f"{event.get('part', '')} ({event.get('rule', '')})")
    has_begun = any(event["what"] == "audit_ends_rank" for event in events)
    return AuditResult(Verdict.NO_VERDICT if has_begun else Verdict.NONE)
