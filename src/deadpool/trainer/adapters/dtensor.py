"""Reads the meshes of DTensors: which ranks hold the same part of one, and which coordinates ranks have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def replicas_of(parameters: Iterable[torch.Tensor]) -> dict[int, tuple[int, ...]]:
    """id(parameter) -> global ranks with identical local values; only where there is more than one."""
    found = {id(each): _ranks_alike(each) for each in parameters if isinstance(each, DTensor)}
    return {key: ranks for key, ranks in found.items() if len(ranks) > 1}


def _ranks_alike(tensor: DTensor) -> tuple[int, ...]:
    """The ranks that differ from this one only along mesh dimensions over which the tensor is replicated."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:  # this rank is outside of the mesh
        return ()
    index: list[Any] = [
        slice(None) if placement.is_replicate() else position
        for placement, position in zip(tensor.placements, coordinate, strict=True)
    ]
    return tuple(sorted(torch.as_tensor(tensor.device_mesh.mesh[tuple(index)]).flatten().tolist()))


def whole_mesh(parameters: Iterable[torch.Tensor], world_size: int) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Names and sizes of the dimensions of the mesh that has all ranks in their order, the last dimension fastest.
    None: the parameters are on no such mesh, or its dimensions have no names."""
    meshes = {id(each.device_mesh): each.device_mesh for each in parameters if isinstance(each, DTensor)}
    for mesh in meshes.values():
        root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh  # a name that is not public
        if root.mesh_dim_names and root.mesh.flatten().tolist() == list(range(world_size)):
            return tuple(root.mesh_dim_names), tuple(root.mesh.shape)
    return None
