"""Batches come from a plain DataLoader of one of the kinds in tests/data_kinds.py, through a generator that loops."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from small_job import make_model, make_parser, reduce_over, train
from torch import Tensor

import deadpool

sys.path.append(str(Path(__file__).resolve().parents[1]))
from data_kinds import IN_PROCESS, SPAWNED, WORKERS


def batches() -> Iterator[Tensor]:
    while True:
        yield from loader


def main() -> None:
    global loader
    parser = make_parser()
    parser.add_argument("--kind", required=True)
    args = parser.parse_args()
    pool = deadpool.join(backend="gloo")
    model = make_model()
    random.seed(pool.rank)
    np.random.seed(pool.rank)
    torch.manual_seed(pool.rank)
    loader = {**IN_PROCESS, **WORKERS, **SPAWNED}[args.kind]()
    drawn = batches()
    train(
        pool,
        model,
        args.out,
        reduce=lambda model, _: reduce_over(None, model),
        following=lambda _: 0.1 * next(drawn),
        data=loader,
    )


if __name__ == "__main__":  # workers may be spawned, and run this file again
    main()
