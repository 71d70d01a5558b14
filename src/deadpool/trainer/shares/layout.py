"""Which ranks could do a share of another one, and what users claim of it.

`find_shares`: whether another rank could do this rank's share of a step, and which ranks could (rule 30, carried
ranks).

It can if it holds the same tensors, all of them, and if the ranks that need each other within a share move together.

`apply_claims` applies the user's claims about replication over what was derived from DTensor placements, DDP and the
mesh.

A claim covers an object's parameters and, with them, their optimizer state. The coordinator checks it while the job
runs: the event `replicas_differ` names ranks that were claimed to be replicas of each other and are not.

`present_members`: which ranks of a group a backend connects while some ranks have no process (rule 30, carried
ranks).

The group keeps its size, and only the backend inside is smaller (backend/backend_factory.py). All-reduces add up what
the present ranks have, which contains the work of the carried ones. Broadcasts from the group's first rank and
barriers work. What needs one part per rank (all-gathers, reduce-scatters, all-to-alls, gathers, scatters) fails in
the backend, whose number of ranks it does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from deadpool.backend import world
from deadpool.errors import ConfigError
from deadpool.protocol.messages import Shares
from deadpool.snapshot.state.optimizers import optimizers_in
from deadpool.trainer.adapters.ddp import ddp_modules
from deadpool.trainer.adapters.fsdp2 import sharded_modules

if TYPE_CHECKING:
    from deadpool.trainer.job import Job


def find_shares(job: Job) -> Shares:
    assert job.session.settings is not None
    rank, world_size = job.session.rank, job.session.settings.layout.world_size
    if reason := _refusal(job):
        return Shares(refused=reason)
    peers, block = job.state.peers, _block(job.state.modules, rank)
    replicas, together = _as_range(peers), _as_range(block)
    if len(peers) * len(block) != world_size or replicas is None or together is None:
        return Shares(refused=f"rank {rank} has replicas on ranks {list(peers)} only, and works with {list(block)}")
    return Shares(replicas=replicas, block=together)


def _refusal(job: Job) -> str:
    state, rank = job.state, job.session.rank
    if any(group.nccl is not None for group in world.joined_groups()):
        return "the job uses NCCL, and shrinking was tried with gloo only"
    if any(module.static_graph for module in ddp_modules(state.modules)):
        return "DDP with static_graph expects the same number of backwards in every step"
    if job.shares.sync.repeated.found:
        return (
            f"rank {rank} lets DDP synchronise the same gradients twice in a step: use model.no_sync() until the last"
        )
    if not state.peers:
        return f"no other node holds the tensors of rank {rank}: only DDP and HSDP can shrink"
    if count := state.extent(b"").unique_bytes:
        return f"rank {rank} holds {count} bytes that no other rank has: only DDP and HSDP can shrink"
    return ""


def _block(modules: Sequence[nn.Module], rank: int) -> tuple[int, ...]:
    """The ranks that this one communicates with within a share: those of its shards, of all sharded modules. None of
    them is another block's, or the products of replicas and block would not give the whole job."""
    sharded = [p for module in sharded_modules(modules) for p in module.parameters() if isinstance(p, DTensor)]
    alike = {(id(p.device_mesh), p.placements): p for p in sharded}
    return tuple(sorted({rank, *(each for p in alike.values() for each in _shard_ranks(p))}))


def _shard_ranks(parameter: Any) -> tuple[int, ...]:
    mesh = parameter.device_mesh
    where = mesh.get_coordinate()
    picked = tuple(
        slice(None) if placement.is_shard() else where[dim] for dim, placement in enumerate(parameter.placements)
    )
    return tuple(sorted(mesh.mesh[picked].flatten().tolist()))


def _as_range(ranks: Sequence[int]) -> tuple[int, int, int] | None:
    """The same ranks as a range, if they are one: what is sent of a rank must not grow with the job."""
    ordered = sorted(ranks)
    step = ordered[1] - ordered[0] if len(ordered) > 1 else 1
    found = (ordered[0], ordered[-1] + 1, step)
    return found if list(range(*found)) == ordered else None


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


def present_members(ranks: Sequence[int], carried: Mapping[int, int]) -> list[int] | None:
    """The ranks in the order of the backend. In place of a missing first rank comes its carrier: frameworks broadcast
    from the first rank of a group.

    None: the work of a missing rank is done by a rank outside of this group, so no collective of it would be right.
    """
    if any(carried.get(rank, rank) not in ranks for rank in ranks):
        return None
    first = carried.get(ranks[0], ranks[0])
    return [first, *(rank for rank in ranks if rank not in carried and rank != first)]
