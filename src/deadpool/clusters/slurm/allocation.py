"""The allocation that a process runs in, and which node does what in it.

`Allocation`: what a process finds out about the allocation that it runs in, from its environment and Slurm's
commands.

`racks_of_switches` and `racks_of_features`: which nodes fail together: those below one leaf switch, or those with
the same feature that names a rack.

`Roles`: which node of an allocation does what. Every node computes the same answer from the same list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from deadpool.clusters.slurm import client
from deadpool.errors import ConfigError

_RACK_FEATURE = re.compile(r"rack[-_:=]?\w+", re.IGNORECASE)


def racks_of_switches(topology: str, expand: Callable[[str], list[str]]) -> dict[str, str]:
    """Reads racks from what `scontrol show topology` prints. Only leaf switches count; a single one says nothing."""
    racks: dict[str, str] = {}
    for line in topology.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if fields.get("Level") == "0" and fields.get("Nodes"):
            racks |= dict.fromkeys(expand(fields["Nodes"]), fields["SwitchName"])
    return racks if len(set(racks.values())) > 1 else {}


def racks_of_features(features: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Reads racks from features such as rack7 or rack:b2."""
    found = {node: [each for each in names if _RACK_FEATURE.fullmatch(each)] for node, names in features.items()}
    return {node: names[0] for node, names in found.items() if names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    job_id: str
    restarts: int  # how often Slurm has requeued the job
    hosts: tuple[str, ...]
    own: str  # this node
    gpus: int  # that this job has on this node
    racks: Mapping[str, str] = field(default_factory=dict)

    @property
    def attempt(self) -> str:
        return f"{self.job_id}.{self.restarts}"


def is_inside() -> bool:
    return "SLURM_JOB_ID" in os.environ and "SLURM_JOB_NODELIST" in os.environ


def read_allocation(variables: Mapping[str, str]) -> Allocation:
    """Reads the allocation of this process. It raises ConfigError where the process does not run in one."""
    try:
        job_id, nodelist = variables["SLURM_JOB_ID"], variables["SLURM_JOB_NODELIST"]
    except KeyError as missing:
        raise ConfigError(
            f"{missing.args[0]} is not set: this command works inside of a Slurm allocation. Start the job with "
            "`deadpool slurm submit`, or give --join"
        ) from None
    hosts = client.host_names(nodelist)
    return Allocation(
        job_id=job_id,
        restarts=int(variables.get("SLURM_RESTART_COUNT") or 0),
        hosts=tuple(hosts),
        own=variables.get("SLURMD_NODENAME") or hosts[0],
        gpus=_gpus(variables),
        racks=read_racks(hosts),
    )


def _gpus(variables: Mapping[str, str]) -> int:
    text = variables.get("SLURM_GPUS_ON_NODE", "")
    return int(text) if text.isdigit() else 0


def read_racks(hosts: Sequence[str]) -> dict[str, str]:
    """Empty where neither switches nor features tell. A node that is not in it is a rack of its own."""
    racks = racks_of_switches(client.topology(), client.host_names)
    if not racks:
        try:
            racks = racks_of_features(client.node_features(hosts))
        except client.SlurmError:
            racks = {}
    return {host: racks[host] for host in hosts if host in racks}


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
