"""DistributedDataParallel, whose forward pass has no collective. In one step the first block of rank 0 lasts until the
step was aborted; each block of the model notes its calls."""

from __future__ import annotations

import os

import gates
import small_job
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import deadpool
from deadpool.trainer import current

SLOW_STEP = 5
BLOCKS = 8

present = -1
is_waiting_due = "E2E_GATES" in os.environ


class NotedBlock(small_job.Block):
    def forward(self, x: Tensor) -> Tensor:
        with (args.out / f"calls-of-rank{pool.rank}").open("a") as file:
            print(present, file=file)
        if present == SLOW_STEP and pool.rank == 0:
            await_abort()
        return super().forward(x)


def await_abort() -> None:
    """The first time only."""
    global is_waiting_due
    if is_waiting_due:
        gates.wait_for(lambda: current.session.core.is_aborted)
    is_waiting_due = False


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
