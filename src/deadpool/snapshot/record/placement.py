"""Where a DTensor lies, which ranks hold the same part, and what checkpoints call it.

Describes the placement of a DTensor as plain values, and makes a DTensor from them on the mesh of a live parameter.

It works on local tensors and never calls DTensor operations: their sharding cache can return tensors on a dead mesh.

`choose_peers` chooses the state that need not be sent to holders, because a data-parallel replica on another node
has it too.

`CheckpointNames` and `RankSets`: what a rank's tensors are in a checkpoint of the whole job: their names, and the
ranks that share them.

Names are those that torch.distributed.checkpoint gives a state dict of torch's get_state_dict, with the keywords of
protect() at the top: `model.layers.0.weight`, `optimizer.state.layers.0.weight.exp_avg`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from deadpool.errors import StateError
from deadpool.snapshot.record.layout import DTensorSpec
from deadpool.snapshot.record.tensors import is_dtensor, local_part
from deadpool.snapshot.state.objects import Key, Objects


def dtensor_spec_of(tensor: Tensor, name: str) -> DTensorSpec | None:
    """Returns the placements, shape and stride of a DTensor, or None for an ordinary tensor."""
    if not is_dtensor(tensor):
        return None
    placements = tuple(_placement_value(placement, name) for placement in tensor.placements)  # type: ignore[attr-defined]
    return placements, tuple(tensor.shape), tuple(tensor.stride())


def place_in_whole(tensor: Tensor, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns where this rank's part begins in the whole tensor, and the ranks that the whole tensor lies on."""
    if not is_dtensor(tensor):
        return (0,) * tensor.dim(), (rank,)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    ranks = tuple(sorted(mesh.mesh.flatten().tolist()))
    _, start = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)  # type: ignore[attr-defined]
    return tuple(start), ranks


def make_dtensor(local: Tensor, dtensor_spec: DTensorSpec, param: Tensor, name: str) -> Tensor:
    """Makes a DTensor of `local` on the parameter's mesh."""
    from torch.distributed.tensor import DTensor

    if not isinstance(param, DTensor):
        raise StateError(f"{name} was a DTensor when it was stored, but its parameter here is an ordinary tensor")
    placements, shape, stride = dtensor_spec
    return DTensor.from_local(
        local,
        param.device_mesh,
        [_placement(value) for value in placements],
        run_check=False,
        shape=torch.Size(shape),
        stride=stride,
    )


def clone(tensor: Tensor, name: str) -> Tensor:
    local, dtensor_spec = local_part(tensor).clone(), dtensor_spec_of(tensor, name)
    return local if dtensor_spec is None else make_dtensor(local, dtensor_spec, tensor, name)


def _placement_value(placement: Any, name: str) -> tuple[Any, ...]:
    kind = type(placement).__name__
    if kind == "Shard":
        return kind, placement.dim
    if kind == "Replicate":
        return (kind,)
    if kind == "_StridedShard":
        return kind, placement.dim, placement.split_factor
    if kind == "Partial":
        return kind, placement.reduce_op
    raise StateError(f"{name}: DTensor placement {placement} cannot be stored")


def _placement(value: tuple[Any, ...]) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    match value:
        case ("Shard", dim):
            return Shard(dim)
        case ("Replicate",):
            return Replicate()
        case ("_StridedShard", dim, split_factor):
            return _StridedShard(dim, split_factor=split_factor)
        case ("Partial", reduce_op):
            return Partial(reduce_op)
    raise StateError(f"unknown DTensor placement {value}")


def choose_peers(
    params: Iterable[object],
    replicas: Mapping[int, tuple[int, ...]],
    *,
    rank: int,
    node_of: Callable[[int], int],
) -> tuple[tuple[int, ...], frozenset[int]]:
    """Returns the ranks that share the replica region, this rank included, and the ids of the parameters in it.

    A region has one set of peers: the intersection over its parameters. A parameter that would leave no peer on another
    node goes into the unique region instead, which is sent to holders.
    """

    def survives_here(ranks: frozenset[int]) -> bool:
        return any(node_of(peer) != node_of(rank) for peer in ranks)

    peers: frozenset[int] | None = None
    members: set[int] = set()
    for param in params:
        holders = frozenset(replicas.get(id(param), ())) | {rank}
        common = holders if peers is None else peers & holders
        if survives_here(common):
            peers = common
            members.add(id(param))
    return tuple(sorted(peers or ())), frozenset(members)


_WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Attributes under which DDP, compile and others keep the module that they wrap: get_state_dict leaves them out too."""


def plain_name(name: str) -> str:
    parts = name.split(".")
    while parts and parts[0] == "module":  # only at the top, where DDP puts it: elsewhere a user may have chosen it
        parts = parts[1:]
    return ".".join(part for part in parts if part == "module" or part not in _WRAPPERS)


class CheckpointNames:
    def __init__(self, objects: Objects) -> None:
        self._param_keys = {id(param): key for key, param in objects.params.items()}
        names = [plain_name(str(key[2])) for key in objects.params]
        self._ambiguous = {name for name in names if names.count(name) > 1} if len(objects.modules) > 1 else set()

    def of(self, key: Key, param: Tensor) -> str:
        kind, keyword, index, state_key = key
        if kind == "param":
            return f"{keyword}.{plain_name(str(index))}"
        if kind == "buffer":
            return ".".join(part for part in (keyword, plain_name(str(index)), str(state_key)) if part)
        return f"{keyword}.state.{self._of_param(param, index)}.{state_key}"

    def _of_param(self, param: Tensor, index: str | int) -> str:
        """Returns the name of the parameter that the state belongs to. Two modules may have parameters of the same
        name.
        """
        known = self._param_keys.get(id(param))
        if known is None:
            return str(index)
        name = plain_name(str(known[2]))
        return f"{known[1]}.{name}" if name in self._ambiguous else name


class RankSets:
    """Sets of ranks, each kept once."""

    def __init__(self, replicas: Mapping[int, tuple[int, ...]], rank: int) -> None:
        """`replicas`: id(parameter) -> ranks with identical values."""
        self._replicas, self._rank = dict(replicas), rank
        self._index: dict[tuple[int, ...], int] = {}

    def place(self, tensor: Tensor, param: Tensor, *, sharded: bool) -> tuple[tuple[int, ...], int, int]:
        """Where a tensor begins in the whole one, the ranks with the same bytes, and those that the whole lies on."""
        replicas = () if sharded else self._replicas.get(id(param), ())
        alike = tuple(sorted({*replicas, self._rank}))
        start, mesh = place_in_whole(tensor, self._rank)
        sharing = mesh if len(mesh) > 1 else alike
        return start, self._add(alike), self._add(sharing)

    def forget(self, ids: Iterable[int]) -> None:
        """Forgets that these parameters are the same on several ranks."""
        for each in ids:
            self._replicas.pop(each, None)

    def all(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self._index)

    def _add(self, ranks: tuple[int, ...]) -> int:
        return self._index.setdefault(ranks, len(self._index))
