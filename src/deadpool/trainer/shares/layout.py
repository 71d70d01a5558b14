"""Whether another rank could do this rank's share of a step, and which ranks could (rule 30, carried ranks).

It can if it holds the same tensors, all of them, and if the ranks that need each other within a share move together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor

from deadpool.backend import world
from deadpool.protocol.messages import Shares
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
