"""The blocks of the model are compiled, under DistributedDataParallel or fully_shard."""

from __future__ import annotations

from small_job import inputs_of, make_model, make_parser, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import deadpool


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
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
model = make_model()
for block in model:
    block.compile(backend=args.backend)
wrapped = wrap(model, args.layout, pool.world_size)
train(pool, wrapped, args.out, reduce=None, following=lambda step: inputs_of(step, pool.rank))
