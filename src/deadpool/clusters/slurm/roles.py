"""Which node of an allocation does what. Every node computes the same answer from the same list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deadpool.errors import ConfigError

LEAST_NODES = 3
"""With fewer nodes that train, a second coordinator could never have a majority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    trains: tuple[str, ...]
    spares: tuple[str, ...]
    coordinators: tuple[str, ...]  # the first one begins


def assign_roles(hosts: Sequence[str], *, nodes: int, standbys: int, racks: Mapping[str, str]) -> Roles:
    """The first hosts train. Coordinators lie on different nodes, and in different racks as far as there are any; a
    spare has one only where all nodes that train share a rack."""
    if nodes > len(hosts):
        raise ConfigError(
            f"nodes={nodes} cannot be used: the allocation has {len(hosts)} nodes. Ask Slurm for nodes + spares"
        )
    trains = tuple(hosts[:nodes])
    wanted = 1 + (standbys if nodes >= LEAST_NODES else 0)
    coordinators = [trains[0]]
    while len(coordinators) < min(wanted, len(hosts)):
        used = {racks.get(host, host) for host in coordinators}
        others = [host for host in hosts if host not in coordinators]
        coordinators.append(next((host for host in others if racks.get(host, host) not in used), others[0]))
    return Roles(trains=trains, spares=tuple(hosts[nodes:]), coordinators=tuple(coordinators))
