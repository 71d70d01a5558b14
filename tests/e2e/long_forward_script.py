"""DistributedDataParallel, whose forward pass has no collective. In one step it takes rank 0 seconds; each block of the
model notes its calls."""

from __future__ import annotations

import os
import time

import small_job
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import deadpool

SLOW_STEP = 5
BLOCKS = 8
BLOCK_S = 0.5 if "E2E_GATES" in os.environ else 0.0

present = -1


class NotedBlock(small_job.Block):
    def forward(self, x: Tensor) -> Tensor:
        with (args.out / f"calls-of-rank{pool.rank}").open("a") as file:
            print(present, file=file)
        if present == SLOW_STEP and pool.rank == 0:
            time.sleep(BLOCK_S)
        return super().forward(x)


def following(step: int) -> Tensor:
    global present
    present = step
    return small_job.inputs_of(step, pool.rank)


args = small_job.make_parser().parse_args()
args.out.mkdir(parents=True, exist_ok=True)
pool = deadpool.join(backend="gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(*(NotedBlock() for _ in range(BLOCKS))))
small_job.train(pool, model, args.out, reduce=None, following=following)
