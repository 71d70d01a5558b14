"""Layouts with fully_shard (FSDP2): parameters, gradients and optimizer state are sharded over ranks, or over pairs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from deadpool_lab.workload.layouts.assembly import Assembly, LayoutOptions, adamw, compile_blocks, split_world

SHARDS = 2  # per replica, in HSDP


def build(layout: str, options: LayoutOptions) -> Assembly:
    model = options.model()
    compile_blocks(model.pieces, options)
    shard(model, model.blocks, _mesh(layout, options.device.type), **_policy(layout))
    return Assembly(model, adamw(model, options), options.batch)


def shard(root: nn.Module, parts: Iterable[nn.Module], mesh: DeviceMesh, **policy: Any) -> None:
    """Shards each part by itself, so that it is gathered when it is needed; the root gets the remaining parameters."""
    for part in parts:
        fully_shard(part, mesh=mesh, **policy)
    fully_shard(root, mesh=mesh, **policy)


def _mesh(layout: str, device_type: str) -> DeviceMesh:
    if layout == "hsdp":
        shape = (split_world(SHARDS, layout), SHARDS)
        return init_device_mesh(device_type, shape, mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device_type, (dist.get_world_size(),), mesh_dim_names=("dp",))


def _policy(layout: str) -> dict[str, Any]:
    if layout == "fsdp2-keep":
        return {"reshard_after_forward": False}
    if layout == "fsdp2-bf16":
        return {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    return {}
