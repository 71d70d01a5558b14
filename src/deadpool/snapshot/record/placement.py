"""Describes the placement of a DTensor as plain values, and makes a DTensor from them on the mesh of a live parameter.

It works on local tensors and never calls DTensor operations: their sharding cache can return tensors on a dead mesh.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deadpool.errors import StateError
from deadpool.snapshot.record.layout import DTensorSpec
from deadpool.snapshot.record.tensors import is_dtensor, local_part


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
