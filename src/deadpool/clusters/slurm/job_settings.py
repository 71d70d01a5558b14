"""The settings of a DeadPool job in an allocation: what was given, and what follows from the allocation."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deadpool.clusters.slurm.allocation import Allocation
from deadpool.clusters.slurm.roles import LEAST_NODES, assign_roles
from deadpool.config.environment import SLURM_OPTIONS_VARIABLE, variable_of
from deadpool.config.job_config import JobConfig, resolve
from deadpool.errors import ConfigError


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
