"""The blocks of the model are compiled, under DistributedDataParallel or fully_shard."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from small_job import inputs_of, make_model, make_parser, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import deadpool


class OwnBlock(nn.Module):
    """Each rank compiles code of its own: a number of the rank stands in it."""

    def __init__(self, block: nn.Module, rank: int) -> None:
        super().__init__()
        self.block, self.share = block, 1.0 + rank / 64

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.block(x) * self.share)


def tell_counters(folder: Path, rank: int) -> None:
    """What this process has compiled, and what it found compiled."""
    from torch._dynamo.utils import counters

    told = {name: dict(counters[name]) for name in ("frames", "inductor", "aot_autograd")}
    (folder / f"compiled-{rank}.json").write_text(json.dumps(told))


def wrap(model: nn.Sequential, layout: str, world_size: int) -> nn.Module:
    if layout == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


parser = make_parser()
parser.add_argument("--layout", choices=("ddp", "fsdp2"), required=True)
parser.add_argument("--backend", required=True)
parser.add_argument("--own-code", action="store_true")
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
model = make_model()
if args.own_code:
    model = nn.Sequential(*(OwnBlock(block, pool.rank) for block in model))
for block in model:
    block.compile(backend=args.backend)
wrapped = wrap(model, args.layout, pool.world_size)
train(
    pool,
    wrapped,
    args.out,
    reduce=None,
    following=lambda step: inputs_of(step, pool.rank),
    at_end=lambda: tell_counters(args.out, pool.rank),
)
