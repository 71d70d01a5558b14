"""What an examination found, and how it is shown.

What an examination found: values, as people read them and as JSON.

`Result`: what an examination found, for people and for programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from rich.console import Console
from rich.table import Table

Facts = dict[str, Any]
SAME_SECRET = "give every node the same secret (DEADPOOL_SECRET_FILE) and --tls"


class FindingKind(Enum):
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
    kind: FindingKind = FindingKind.FINDING

    def at(self, node: str) -> Finding:
        return dataclasses.replace(self, node=self.node or node)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "kind": self.kind.value}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Finding:
        texts = {name: str(value[name]) for name in ("check", "what", "do", "node")}
        return cls(**texts, kind=FindingKind(value["kind"]))


def note(check: str, what: str, do: str) -> Finding:
    return Finding(check=check, what=what, do=do, kind=FindingKind.NOTE)


def unknown(check: str, what: str, do: str) -> Finding:
    return Finding(check=check, what=what, do=do, kind=FindingKind.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What was found on one node."""

    node: str
    facts: Facts = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"node": self.node, "facts": self.facts, "findings": [each.to_json() for each in self.findings]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NodeReport:
        """Raises KeyError, TypeError or ValueError where it is not one."""
        findings = tuple(Finding.from_json(each) for each in value["findings"])
        return cls(node=str(value["node"]), facts=dict(value["facts"]), findings=findings)


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    kinds = {each.kind for each in findings}
    if FindingKind.FINDING in kinds:
        return ExitCode.FINDING
    return ExitCode.COULD_NOT_LOOK if FindingKind.UNKNOWN in kinds else ExitCode.FINE


_ORDER = list(FindingKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found on all examined nodes. `findings` are those of their reports and those of them together."""

    reports: tuple[NodeReport, ...]
    findings: tuple[Finding, ...]
    links: tuple[Facts, ...] = field(default=())

    @property
    def code(self) -> ExitCode:
        return exit_code(self.findings)

    def to_json(self) -> dict[str, Any]:
        nodes = [report.to_json() for report in self.reports]
        findings = [each.to_json() for each in self.findings]
        return {"code": int(self.code), "nodes": nodes, "findings": findings, "links": list(self.links)}

    @classmethod
    def of(cls, reports: Sequence[NodeReport], more: Sequence[Finding] = (), links: Sequence[Facts] = ()) -> Result:
        own = [finding for report in reports for finding in report.findings]
        return cls(reports=tuple(reports), findings=(*own, *more), links=tuple(links))


def show(result: Result, console: Console) -> None:
    """One table, the gravest first; equal findings of several nodes share a row."""
    rows: dict[tuple[FindingKind, str, str, str], list[str]] = {}
    for each in sorted(result.findings, key=lambda found: _ORDER.index(found.kind)):
        nodes = rows.setdefault((each.kind, each.check, each.what, each.do), [])
        if each.node not in nodes:
            nodes.append(each.node)
    if rows:
        table = Table("", "check", "node", "what was found", "what to do", show_lines=True)
        for (kind, check, what, do), nodes in rows.items():
            table.add_row(kind.value, check, _names(nodes), what, do)
        console.print(table)
    console.print(_summary(result))


def _names(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:8])
    return shown if len(nodes) <= 8 else f"{shown} and {len(nodes) - 8} more"


def _summary(result: Result) -> str:
    count = len(result.reports)
    examined = f"{count} node{'s' if count != 1 else ''} examined"
    if result.links:
        slowest = min(result.links, key=lambda link: link["gbps"])
        examined += f", slowest link {slowest['from']} to {slowest['to']} at {slowest['gbps']:.2f} GB/s"
    words = {
        ExitCode.FINE: "nothing found that would stop a job",
        ExitCode.FINDING: "correct what was found before you start a job",
        ExitCode.COULD_NOT_LOOK: "nothing found, but not everything could be examined",
    }
    return f"{examined}: {words[result.code]}"
