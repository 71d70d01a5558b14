"""Layouts with parallelize_module: each matrix is split over a tp mesh, and activations are with sequence parallelism.

Data parallelism is around it, by hand or by fully_shard. Dropout applies to activations of which each rank has a part,
so each rank draws its own random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from deadpool.demo.gpt import Embedding, GPTBlock, OutputHead
from deadpool_lab.workload.layouts.assembly import (
    Assembly,
    LayoutOptions,
    adamw,
    compile_blocks,
    local_part,
    split_world,
)
from deadpool_lab.workload.layouts.sharded import shard

TP_SIZE = 2


def build(layout: str, options: LayoutOptions) -> Assembly:
    shape = (split_world(TP_SIZE, layout), TP_SIZE)
    mesh = init_device_mesh(options.device.type, shape, mesh_dim_names=("dp", "tp"))
    model = options.model()
    parallelize(model.pieces, mesh["tp"], sequence_parallel=layout != "tp")
    compile_blocks(model.pieces, options)
    if layout == "fsdp2-tp":
        shard(model, model.blocks, mesh["dp"])
        return _Sharded(model, adamw(model, options), options.batch, mesh)
    return _ReducedByHand(model, adamw(model, options), options.batch, mesh)


class _Sharded(Assembly):
    def __init__(self, model: nn.Module, optimizer: Any, sequences: int, mesh: DeviceMesh) -> None:
        super().__init__(model, optimizer, sequences)
        self.mesh = mesh
        self.data_rank, self.data_size = mesh["dp"].get_local_rank(), mesh["dp"].size()


class _ReducedByHand(_Sharded):
    def train_step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = super().train_step(tokens, targets)
        for parameter in self.model.parameters():
            settle(parameter)
            assert parameter.grad is not None
            gradient = local_part(parameter.grad)
            dist.all_reduce(gradient, group=self.mesh.get_group("dp"))
            gradient.div_(self.data_size)
        return loss


def settle(parameter: Tensor) -> None:
    """Sums gradients of norms and biases: with sequence parallelism each rank has only a partial sum of them."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
        assert isinstance(parameter, DTensor)
        parameter.grad = gradient.redistribute(placements=parameter.placements)


def parallelize(pieces: Iterable[nn.Module], mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    for piece in pieces:
        parallelize_module(piece, mesh, _plan(piece, sequence_parallel))


def _plan(piece: nn.Module, sequence_parallel: bool) -> dict[str, Any]:
    between = Shard(1) if sequence_parallel else Replicate()  # the placement of activations between two pieces
    plan: dict[str, Any]
    norms: tuple[str, ...]
    match piece:
        case Embedding():
            lookup = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
            plan = {"tokens": lookup, "places": lookup}
            norms = ()
        case GPTBlock():
            split, join = ColwiseParallel(input_layouts=between), RowwiseParallel(output_layouts=between)
            plan = {"qkv": split, "out": join, "up": split, "down": join}
            norms = ("norm_1", "norm_2")
        case OutputHead():
            plan = {"logits": ColwiseParallel(input_layouts=between, output_layouts=Replicate())}
            norms = ("norm",)
        case _:
            raise AssertionError(f"no plan for a {type(piece).__name__}")
    return plan | {name: SequenceParallel() for name in norms if sequence_parallel}
