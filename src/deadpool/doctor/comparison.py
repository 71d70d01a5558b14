"""What only the reports of several nodes together tell: whether they have the same versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from deadpool.doctor.finding import Finding, Report
from deadpool.doctor.versions import COMPARED


def compare(reports: Sequence[Report]) -> list[Finding]:
    """One finding for each node that differs from most; where there is no majority, from the first."""
    findings = []
    for fact, name in COMPARED.items():
        versions = {report.node: report.facts.get(fact) for report in reports if fact in report.facts}
        usual = _usual(list(versions.values()))
        for node, version in versions.items():
            if version != usual:
                findings.append(_differs(node, name, version, usual))
    return findings


def _usual(versions: list[str | None]) -> str | None:
    """The most frequent one; the first of several that are equally frequent."""
    counted = Counter(versions).most_common(1)
    return counted[0][0] if counted else None


def _differs(node: str, name: str, version: str | None, usual: str | None) -> Finding:
    what = f"it has {name} {version or 'not at all'}, and the others have {usual or 'none'}"
    return Finding(check="versions", node=node, what=what, do=f"install {name} {usual or version} on every node")
