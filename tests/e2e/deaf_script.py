"""A job whose rank 0, once, waits inside torch for something that no abort reaches."""

from __future__ import annotations

import gates
import torch
from small_job import inputs_of, make_model, make_parser, reduce_over, train
from torch import nn

import deadpool

DEAF_STEP = 4


def reduce(model: nn.Module, step: int) -> None:
    if step == DEAF_STEP and pool.rank == 0 and gates.is_first_time("deaf"):
        torch.futures.Future().wait()
    reduce_over(None, model)


args = make_parser().parse_args()
pool = deadpool.join(backend="gloo")
train(pool, make_model(), args.out, reduce=reduce, following=lambda step: inputs_of(step, pool.rank))
