"""A small protected job for tests that end its processes. It stands at the gates that ENDINGS_GATES names (gates.py).

loading: before the script joins the job, rank 0. training: in the middle of a step, rank 0. recovering: where a process
loads the state of its rank. ending: after the loop, rank 0. At the end of its
loop a rank writes down the steps that it has done.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gates
import torch
import torch.distributed as dist

import deadpool

STEPS, GATE_STEP = 6, 3
_OUT = Path(sys.argv[1])
_RANK = int(os.environ["RANK"])


def stand_at(gate: str, rank: int = _RANK) -> None:
    if rank == 0 and gate in os.environ["ENDINGS_GATES"].split():
        gates.wait_at(gate)


class Position:
    """State of a script's own that is loaded in a recovery, and not before."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]
        stand_at("recovering", rank=0)


def main() -> None:
    stand_at("loading")
    pool = deadpool.join(backend="gloo")
    torch.manual_seed(0)
    model, position = torch.nn.Linear(4, 4), Position()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = pool.protect(model=model, optimizer=optimizer, position=position)
    for step in job.steps(STEPS):
        with step:
            train_step(model, step)
            optimizer.step()
            optimizer.zero_grad()
            position.step = step.number
    (_OUT / f"steps-of-rank{_RANK}").write_text(str(position.step + 1))
    stand_at("ending")
    dist.destroy_process_group()


def train_step(model: torch.nn.Module, step: Any) -> None:
    model(torch.ones(2, 4)).sum().backward()
    if step.number == GATE_STEP and not step.dry:
        stand_at("training")
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


if __name__ == "__main__":
    main()
