"""What an examination found, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from deadpool.doctor.finding import ExitCode, Facts, Finding, Kind, Report, exit_code

_ORDER = list(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found on all examined nodes. `findings` are those of their reports and those of them together."""

    reports: tuple[Report, ...]
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
    def of(cls, reports: Sequence[Report], more: Sequence[Finding] = (), links: Sequence[Facts] = ()) -> Result:
        own = [finding for report in reports for finding in report.findings]
        return cls(reports=tuple(reports), findings=(*own, *more), links=tuple(links))


def show(result: Result, console: Console) -> None:
    """One table, the gravest first; equal findings of several nodes share a row."""
    rows: dict[tuple[Kind, str, str, str], list[str]] = {}
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
