"""What is asked of Slurm, and what is set for the job.

`option_words`, `words_of_record` and `words_for_spare`: what is asked of Slurm for a job, and for the one-node jobs
that bring new spares: options of sbatch.

`job_settings`, `checked` and `describe`: the settings of a DeadPool job in an allocation: what was given, and what
follows from the allocation.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deadpool.clusters.slurm.allocation import LEAST_NODES, Allocation, assign_roles
from deadpool.config.environment import SLURM_OPTIONS_VARIABLE, variable_of
from deadpool.config.job_config import JobConfig
from deadpool.config.resolution import resolve
from deadpool.errors import ConfigError

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
    for field, option in _OF_RECORD.items():
        value = record.get(field, "")
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
