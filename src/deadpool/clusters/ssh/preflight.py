"""Whether the hosts fit together: versions, clocks, folders, addresses. Each finding says what to do about it."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deadpool import __version__
from deadpool.clusters.ssh.hosts import Host

if TYPE_CHECKING:
    from rich.table import Table

SAME = ("python", "torch", "numpy")
"""Versions that have to be the same on all hosts. DeadPool's has to be that of the launcher, too."""
CLOCK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What is known of one host. `facts` is None if it could not be asked; `problem` then says why."""

    host: Host
    facts: dict[str, Any] | None = None
    problem: str = ""

    @property
    def clock(self) -> tuple[float, float]:
        """How far it is ahead of this machine's, and how far that may be wrong."""
        assert self.facts is not None
        asked, answered = self.facts["asked_at"], self.facts["answered_at"]
        return self.facts["time"] - (asked + answered) / 2, (answered - asked) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    node: str
    text: str
    fatal: bool = True


def findings(checked: Sequence[Checked]) -> list[Finding]:
    found = [Finding(node=each.host.name, text=each.problem) for each in checked if each.facts is None]
    known = [each for each in checked if each.facts is not None]
    for each in known:
        found += [Finding(node=each.host.name, text=text) for text in (each.facts or {})["problems"]]
    found += [finding for package in SAME for finding in _versions(known, package)]
    found += [finding for each in known for finding in _own(each, alone=len(checked) == 1)]
    return [*found, *_clocks(known), *_same_address(known)]


def _versions(known: Sequence[Checked], package: str) -> list[Finding]:
    """Compared with what most hosts have: the odd one is the one to change."""
    versions = [str((each.facts or {})[package]) for each in known]
    usual = max(sorted(set(versions)), key=versions.count, default="")
    found = []
    for each, version in zip(known, versions, strict=True):
        if not version:
            found.append(
                Finding(node=each.host.name, text=f"{package} is not installed: {_python_of(each)} -m pip install it")
            )
        elif version != usual:
            what = (
                f"{package} {version}, the others have {usual}: install the same, or name another python with python="
            )
            found.append(Finding(node=each.host.name, text=what))
    return found


def _own(each: Checked, *, alone: bool) -> list[Finding]:
    facts = each.facts or {}
    found = []
    if facts["deadpool"] != __version__:
        text = f"deadpool {facts['deadpool']}, here it is {__version__}: install the same"
        found.append(Finding(node=each.host.name, text=text))
    address = each.host.address or facts["address"]
    if address and not alone and ipaddress.IPv4Address(address).is_loopback:
        text = f"its address is {address}, where no other host reaches it: write address= behind it in the hosts file"
        found.append(Finding(node=each.host.name, text=text))
    return found


def _clocks(known: Sequence[Checked]) -> list[Finding]:
    """Compares each clock with the median. Nothing is decided by clocks, but people compare times in events of several
    nodes.
    """
    if not known:
        return []
    offsets = sorted(each.clock[0] for each in known)
    median = offsets[len(offsets) // 2]
    found = []
    for each in known:
        ahead, error = each.clock[0] - median, each.clock[1]
        if abs(ahead) - error > CLOCK_S:
            way = "ahead of" if ahead > 0 else "behind"
            text = (
                f"its clock is {abs(ahead):.1f} s {way} the others: times in events will not fit; set it (chrony, ntp)"
            )
            found.append(Finding(node=each.host.name, text=text, fatal=False))
    return found


def _same_address(known: Sequence[Checked]) -> list[Finding]:
    by_address: dict[str, list[str]] = {}
    for each in known:
        by_address.setdefault(each.host.address or (each.facts or {})["address"], []).append(each.host.name)
    return [
        Finding(
            node=names[-1], text=f"{', '.join(names)} have one address, {address}: give each machine once", fatal=False
        )
        for address, names in by_address.items()
        if address and len(names) > 1
    ]


def _python_of(each: Checked) -> str:
    return str((each.facts or {})["executable"])


def table(checked: Sequence[Checked], roles: dict[str, str]) -> Table:
    from rich.table import Table

    shown = Table("node", "role", "machine", "address", "python", "torch", "deadpool", "clock")
    for each in checked:
        shown.add_row(each.host.name, roles[each.host.name], *_row(each))
    return shown


def _row(each: Checked) -> list[str]:
    if each.facts is None:
        return [each.host.target, "-", "-", "-", "-", "-"]
    facts, (ahead, error) = each.facts, each.clock
    address = each.host.address or facts["address"] or "-"
    versions = [facts[name] or "-" for name in ("python", "torch", "deadpool")]
    return [f"{facts['user']}@{facts['host']}", address, *versions, f"{ahead:+.2f} s ± {error:.2f}"]
