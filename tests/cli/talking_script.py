"""A small protected job whose steps say more than a pipe holds. It notes in a file that all steps are done."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import deadpool

STEPS = 6
LINE = "~" * 30_000


def main() -> None:
    pool = deadpool.join(backend="gloo")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = pool.protect(model=model, optimizer=optimizer)
    for step in job.steps(STEPS):
        with step:
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        for _ in range(10):
            print(LINE, flush=True)
    Path(sys.argv[1]).touch()


if __name__ == "__main__":
    main()
