"""Applies the user's claims about replication over what was derived from DTensor placements, DDP and the mesh.

A claim covers an object's parameters and, with them, their optimizer state. The coordinator checks it while the job
runs: the event `replicas_differ` names ranks that were claimed to be replicas of each other and are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from deadpool.errors import ConfigError
from deadpool.snapshot.state.optimizers import optimizers_in

Claims = Mapping[str, "dist.ProcessGroup | None"]
"""A keyword of protect() -> the group on whose ranks the object is identical; None: no other rank has the same."""


def apply_claims(
    derived: Mapping[int, tuple[int, ...]], objects: Mapping[str, object], claims: Claims, rank: int
) -> dict[int, tuple[int, ...]]:
    """id(parameter) -> ranks with the same values. If two claims name the same parameter, a None wins: it is sent."""
    replicas = dict(derived)
    for name, group in sorted(claims.items(), key=lambda claim: claim[1] is None):
        ranks = () if group is None else _ranks_of(name, group, rank)
        for param in _params_of(name, objects):
            replicas[id(param)] = ranks
    return replicas


def _params_of(name: str, objects: Mapping[str, object]) -> list[Tensor]:
    if name not in objects:
        raise ConfigError(
            f"replicated={{{name!r}: ...}} names no object of this call: {', '.join(objects)} would be accepted"
        )
    value: Any = objects[name]
    if isinstance(value, nn.Module):
        return list(value.parameters())
    if found := optimizers_in(value):
        return [param for each in found.values() for group in each.param_groups for param in group["params"]]
    raise ConfigError(
        f"replicated={{{name!r}: ...}} names a {type(value).__name__}, whose state is always sent: name a module or an "
        "optimizer"
    )


def _ranks_of(name: str, group: Any, rank: int) -> tuple[int, ...]:
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ConfigError(f"replicated={{{name!r}: ...}} is a group that rank {rank} is not in: give one that it is in")
    if not isinstance(group, dist.ProcessGroup):
        raise ConfigError(
            f"replicated={{{name!r}: {group!r}}} cannot be used: give a process group, or None if there is no replica"
        )
    ranks = tuple(sorted(dist.get_process_group_ranks(group)))
    if rank not in ranks:
        raise ConfigError(f"replicated={{{name!r}: ...}} is a group of ranks {ranks}, and rank {rank} is not in it")
    return ranks
