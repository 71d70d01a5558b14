"""What a process finds out about the allocation that it runs in, from its environment and Slurm's commands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deadpool.clusters.slurm import client
from deadpool.clusters.slurm.racks import racks_of_features, racks_of_switches
from deadpool.errors import ConfigError


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
