"""The hosts of a job, its settings on them, and whether they fit together.

The hosts file has one machine per line, as ssh takes it, and what is special about it:

    # comment
    node-a
    alice@node-b   rack=r1
    ssh://node-c:2222   name=c address=10.1.0.3 python=/opt/torch/bin/python

`settle` says how many hosts train, and how many coordinators there are. Versions, clocks, folders and addresses of the
hosts are compared before the job starts, and each finding says what to do about it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from deadpool import __version__
from deadpool.config.job_config import JobConfig
from deadpool.config.resolution import resolve
from deadpool.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

_KEYS = ("name", "address", "rack", "python")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*$")

SAME = ("python", "torch", "numpy")
"""Versions that have to be the same on all hosts. DeadPool's has to be that of the launcher, too."""
CLOCK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    name: str  # of the node
    target: str  # what ssh is called with
    address: str = ""  # where other nodes reach it; empty: where the launcher did
    rack: str | None = None
    python: str = ""  # empty: as --python says


def read_hosts(path: Path) -> list[Host]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"hosts={str(path)!r} cannot be read: {reason}. Give a file with one machine per line, as ssh takes it"
        ) from error
    numbered = [(number, line.partition("#")[0].split()) for number, line in enumerate(text.splitlines(), 1)]
    hosts = [_host(words, f"{path}, line {number}") for number, words in numbered if words]
    if not hosts:
        raise ConfigError(f"hosts={str(path)!r} names no machine: write one per line, as ssh takes it")
    _check_names(hosts, path)
    return hosts


def _host(words: list[str], where: str) -> Host:
    target, *rest = words
    if target.startswith("-") or "=" in target:
        raise ConfigError(f"{where}: {target!r} is not a machine: begin the line with what you would give to ssh")
    if "[" in target:
        raise ConfigError(f"{where}: {target!r} names several machines: write one machine per line")
    values = dict(_pair(word, where) for word in rest)
    address = values.get("address", "")
    if address:
        _check_address(address, where)
    name = values.get("name") or _name_of(target)
    if not _NAME.match(name):
        raise ConfigError(f"{where}: {name!r} cannot name a node: add name= with letters, digits, dots and dashes")
    return Host(name=name, target=target, address=address, rack=values.get("rack"), python=values.get("python", ""))


def _pair(word: str, where: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    if key not in _KEYS or not value:
        accepted = ", ".join(f"{each}=..." for each in _KEYS)
        raise ConfigError(f"{where}: {word!r} is not known: behind a machine may stand {accepted}")
    return key, value


def _check_address(address: str, where: str) -> None:
    try:
        ipaddress.IPv4Address(address)
    except ValueError:
        raise ConfigError(f"{where}: address={address!r} cannot be used: give an IPv4 address") from None


def _name_of(target: str) -> str:
    if target.startswith("ssh://"):
        return urlsplit(target).hostname or ""
    return target.rpartition("@")[2]


def _check_names(hosts: list[Host], path: Path) -> None:
    seen: dict[str, Host] = {}
    for host in hosts:
        if host.name in seen:
            raise ConfigError(
                f"hosts={str(path)!r}: two nodes are called {host.name} ({seen[host.name].target}, {host.target}): "
                "give each machine once, or add name= to one of them"
            )
        seen[host.name] = host


_ENOUGH_FOR_TWO = 3
"""One of several coordinators acts only with most of the nodes that ran."""


def settle(flags: Mapping[str, Any], file: Path | None, hosts: Sequence[Host]) -> tuple[JobConfig, list[Host]]:
    """Returns the settings and the hosts that are used. Unless it is said otherwise, all hosts but the spares train,
    and a second coordinator stands by on another host."""
    given = {name: value for name, value in flags.items() if value is not None}
    spares = resolve({"nodes": len(hosts), **given}, file=file).spares
    nodes = int(given.setdefault("nodes", len(hosts) - spares))
    if nodes < 1 or nodes + spares > len(hosts):
        raise ConfigError(
            f"nodes={nodes} and spares={spares} cannot be used with {len(hosts)} hosts: each host is one node; "
            "name more hosts, or ask for less"
        )
    if nodes >= _ENOUGH_FOR_TWO and not resolve(given, file=file).standby_coordinators:
        given.setdefault("standby_coordinators", 1)
    config = resolve(given, file=file)
    return config, list(hosts[: config.nodes + config.spares])


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
class HostFault:
    node: str
    text: str
    fatal: bool = True


def findings(checked: Sequence[Checked]) -> list[HostFault]:
    found = [HostFault(node=each.host.name, text=each.problem) for each in checked if each.facts is None]
    known = [each for each in checked if each.facts is not None]
    for each in known:
        found += [HostFault(node=each.host.name, text=text) for text in (each.facts or {})["problems"]]
    found += [finding for package in SAME for finding in _versions(known, package)]
    found += [finding for each in known for finding in _own(each, alone=len(checked) == 1)]
    return [*found, *_clocks(known), *_same_address(known)]


def _versions(known: Sequence[Checked], package: str) -> list[HostFault]:
    """Compared with what most hosts have: the odd one is the one to change."""
    versions = [str((each.facts or {})[package]) for each in known]
    usual = max(sorted(set(versions)), key=versions.count, default="")
    found = []
    for each, version in zip(known, versions, strict=True):
        if not version:
            found.append(
                HostFault(node=each.host.name, text=f"{package} is not installed: {_python_of(each)} -m pip install it")
            )
        elif version != usual:
            what = (
                f"{package} {version}, the others have {usual}: install the same, or name another python with python="
            )
            found.append(HostFault(node=each.host.name, text=what))
    return found


def _own(each: Checked, *, alone: bool) -> list[HostFault]:
    facts = each.facts or {}
    found = []
    if facts["deadpool"] != __version__:
        text = f"deadpool {facts['deadpool']}, here it is {__version__}: install the same"
        found.append(HostFault(node=each.host.name, text=text))
    address = each.host.address or facts["address"]
    if address and not alone and ipaddress.IPv4Address(address).is_loopback:
        text = f"its address is {address}, where no other host reaches it: write address= behind it in the hosts file"
        found.append(HostFault(node=each.host.name, text=text))
    return found


def _clocks(known: Sequence[Checked]) -> list[HostFault]:
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
            found.append(HostFault(node=each.host.name, text=text, fatal=False))
    return found


def _same_address(known: Sequence[Checked]) -> list[HostFault]:
    by_address: dict[str, list[str]] = {}
    for each in known:
        by_address.setdefault(each.host.address or (each.facts or {})["address"], []).append(each.host.name)
    return [
        HostFault(
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
