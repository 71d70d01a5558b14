"""What is asked of Slurm for a job, what it gave, and what is set for the job.

Options of sbatch ask for a job, and for the one-node jobs that bring new spares. `Allocation` is what a process finds
out about the allocation that it runs in, from its environment and Slurm's commands: which nodes fail together, those
below one leaf switch, or those with the same feature that names a rack. `Roles` says which node of an allocation does
what: every node computes the same answer from the same list. `job_settings` are the settings of a DeadPool job in an
allocation: what was given, and what follows from the allocation.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.clusters.slurm import client
from deadpool.config.environment import SLURM_OPTIONS_VARIABLE, variable_of
from deadpool.config.job_config import JobConfig
from deadpool.config.resolution import resolve
from deadpool.errors import ConfigError

_RACK_FEATURE = re.compile(r"rack[-_:=]?\w+", re.IGNORECASE)

NAMES = (
    "time", "partition", "account", "qos", "reservation", "constraint", "gres", "gpus_per_node", "cpus_per_task", "mem",
    "exclude", "exclusive",
)  # fmt: skip
"""Options of sbatch that `deadpool slurm submit` has too. Others are given with --sbatch."""

_OF_RECORD = {
    "Partition": "partition",
    "Account": "account",
    "QOS": "qos",
    "Reservation": "reservation",
    "Features": "constraint",
    "TresPerNode": "gres",
    "CPUs/Task": "cpus-per-task",
}


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


def option_words(given: Mapping[str, Any], more: Sequence[str]) -> list[str]:
    """Writes options as words of a command line, without those that are None because nobody asked for them."""
    words = []
    for name in NAMES:
        value = given.get(name)
        if value is True:
            words.append(f"--{name}")
        elif value not in (None, False):
            words.append(f"--{name.replace('_', '-')}={value}")
    return [*words, *more]


def words_of_record(record: Mapping[str, str]) -> list[str]:
    """Returns the options of a job whose batch script is the user's own, from what `scontrol show job` tells of it."""
    words = []
    for name, option in _OF_RECORD.items():
        value = record.get(name, "")
        if value and value not in ("(null)", "N/A"):
            if option == "gres":  # gres:gpu:2, since 23.11 gres/gpu:2
                value = value.replace("gres:", "").replace("gres/", "")
            words.append(f"--{option}={value}")
    return words


def words_for_spare(words: Sequence[str], *, exclude: Iterable[str], seconds_left: float | None) -> list[str]:
    """The same for one node, for the time that the job has left, and not on nodes that failed."""
    excluded = [word.partition("=")[2] for word in words if word.startswith("--exclude=")]
    excluded += sorted(exclude)
    kept = [word for word in words if not word.startswith("--exclude=")]
    if seconds_left is not None:
        kept = [word for word in kept if not word.startswith("--time=")]
        kept.append(f"--time={max(1, math.ceil(seconds_left / 60))}")
    return [*kept, *([f"--exclude={','.join(excluded)}"] if excluded else [])]


def job_settings(allocation: Allocation, variables: Mapping[str, str], flags: Mapping[str, Any]) -> JobConfig:
    """Nodes that are no spares train, with one trainer per GPU. A second coordinator stands by. A job that was requeued
    begins from its durable checkpoint, if there is one."""
    found = {name: value for name, value in flags.items() if value is not None}
    by_variable = ("nodes", "nproc_per_node", "standby_coordinators", "durable", "resume")
    given = {name for name in by_variable if variable_of(name) in variables} | set(found)
    if "durable" in given and "resume" not in given and variables.get("SLURM_RESTART_COUNT", "0") != "0":
        found["resume"] = "auto"
    if "nodes" not in given:
        found["nodes"] = len(allocation.hosts) - int(found.get("spares") or variables.get(variable_of("spares")) or 0)
    if "nproc_per_node" not in given:
        found["nproc_per_node"] = max(1, allocation.gpus)
    nodes = int(found.get("nodes") or variables[variable_of("nodes")])
    if "standby_coordinators" not in given:
        found["standby_coordinators"] = 1 if nodes >= LEAST_NODES else 0
    return checked(resolve(found, environment=variables))


def checked(config: JobConfig) -> JobConfig:
    if config.topology:
        raise ConfigError(f"topology={config.topology!r} cannot be used under Slurm: racks come from Slurm")
    return config


def describe(
    allocation: Allocation, config: JobConfig, program: Sequence[str], preload: Sequence[str], srun: Sequence[str]
) -> dict[str, Any]:
    """What other processes of this job have to know, those of one-node jobs too."""
    roles = assign_roles(
        allocation.hosts, nodes=config.nodes, standbys=config.standby_coordinators, racks=allocation.racks
    )
    options = os.environ.get(SLURM_OPTIONS_VARIABLE)
    return {
        "hosts": list(allocation.hosts),
        "nodes": config.nodes,
        "nproc_per_node": config.nproc_per_node,
        "spares": len(roles.spares),
        "coordinators": list(roles.coordinators),
        "program": list(program),
        "preload": list(preload),
        "srun": list(srun),
        "folder": str(Path.cwd()),
        "options": shlex.split(options) if options is not None else None,
    }
