"""What a run of a generated script left, and what DeadPool said of it.

`lost_files`: whether a run has all the files, and all their lines, that another run of the same script has.

`Verdict` and `AuditResult`: what DeadPool has said of a script, and whether it said so before the first fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


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


_NAMING = ("inexact_script", "audit_differs")


def named_rules(events: Sequence[dict[str, Any]]) -> list[str]:
    """Each rule that was named before the first fault, once."""
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
