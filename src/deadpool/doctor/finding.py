"""What an examination found: values, as people read them and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

Facts = dict[str, Any]
SAME_SECRET = "give every node the same secret (DEADPOOL_SECRET_FILE) and --tls"


class Kind(Enum):
    FINDING = "finding"  # a job would fail, or be slow, because of it
    UNKNOWN = "could not look"
    NOTE = "note"  # worth knowing; no reason to keep a job off the node


class ExitCode(IntEnum):
    """The exit code of `deadpool doctor`. A prolog or a health check acts on 1; what 2 means is the site's choice."""

    FINE = 0
    FINDING = 1
    COULD_NOT_LOOK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    what: str
    do: str
    node: str = ""
    kind: Kind = Kind.FINDING

    def at(self, node: str) -> Finding:
        return dataclasses.replace(self, node=self.node or node)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "kind": self.kind.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Finding:
        texts = {name: str(value[name]) for name in ("check", "what", "do", "node")}
        return cls(**texts, kind=Kind(value["kind"]))


def note(check: str, what: str, do: str) -> Finding:
    return Finding(check=check, what=what, do=do, kind=Kind.NOTE)


def unknown(check: str, what: str, do: str) -> Finding:
    return Finding(check=check, what=what, do=do, kind=Kind.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found on one node."""

    node: str
    facts: Facts = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"node": self.node, "facts": self.facts, "findings": [each.to_json() for each in self.findings]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Report:
        """Raises KeyError, TypeError or ValueError where it is not one."""
        findings = tuple(Finding.from_json(each) for each in value["findings"])
        return cls(node=str(value["node"]), facts=dict(value["facts"]), findings=findings)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    kinds = {each.kind for each in findings}
    if Kind.FINDING in kinds:
        return ExitCode.FINDING
    return ExitCode.COULD_NOT_LOOK if Kind.UNKNOWN in kinds else ExitCode.FINE
