"""A job whose rank 0, once, waits inside torch for something that no abort reaches."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from small_job import inputs_of, make_model, make_parser, reduce_over, train
from torch import nn

import deadpool

DEAF_STEP = 4


def reduce(model: nn.Module, step: int) -> None:
    if step == DEAF_STEP and pool.rank == 0 and _is_first_time():
        torch.futures.Future().wait()
    reduce_over(None, model)


def _is_first_time() -> bool:
    """Only where a test has made the folder for it."""
    folder = os.environ.get("E2E_GATES")
    if folder is None or (Path(folder) / "deaf").exists():
        return False
    (Path(folder) / "deaf").touch()
    return True


args = make_parser().parse_args()
pool = deadpool.join(backend="gloo")
train(pool, make_model(), args.out, reduce=reduce, following=lambda step: inputs_of(step, pool.rank))
