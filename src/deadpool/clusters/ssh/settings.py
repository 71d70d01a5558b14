"""The settings of a job on hosts: how many of them train, and how many coordinators there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deadpool.clusters.ssh.hosts import Host
from deadpool.config.job_config import JobConfig, resolve
from deadpool.errors import ConfigError

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
