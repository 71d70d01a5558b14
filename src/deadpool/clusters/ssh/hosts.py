"""The hosts of a job, and its settings.

`Host`: the hosts file: one machine per line, as ssh takes it, and what is special about it.

# comment node-a alice@node-b   rack=r1 ssh://node-c:2222   name=c address=10.1.0.3 python=/opt/torch/bin/python

`settle`: the settings of a job on hosts: how many of them train, and how many coordinators there are.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deadpool.config.job_config import JobConfig
from deadpool.config.resolution import resolve
from deadpool.errors import ConfigError

_KEYS = ("name", "address", "rack", "python")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*$")


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
