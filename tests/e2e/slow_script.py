"""A job in which everything takes longer on node n1."""

from __future__ import annotations

import os
import time

import small_job
import torch

import deadpool

STEPS = 300
LATE_S = 0.1
IS_SLOW = os.environ.get("DEADPOOL_TRAINER", "").startswith("n1.")


def following(step: int) -> torch.Tensor:
    if IS_SLOW:
        time.sleep(LATE_S)
    return small_job.inputs_of(step, pool.rank)


small_job.STEPS = STEPS
args = small_job.make_parser().parse_args()
pool = deadpool.join(backend="gloo")
small_job.train(
    pool,
    small_job.make_model(),
    args.out,
    reduce=lambda model, step: small_job.reduce_over(None, model),
    following=following,
)
