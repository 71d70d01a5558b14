"""The loop of the scripts beside it: a small model, plain data parallelism, results as the workload writes them.

Each script says in what it is special. `act` makes happen what a test has planned for a step (see acts.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
import torch.nn.functional as F
from acts import act
from torch import Tensor, nn

import deadpool

WIDTH = 24
STEPS = 8

Reduce = Callable[[nn.Module, int], None]
NextInputs = Callable[[int], Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.dropout(F.gelu(self.up(self.norm(x))), 0.1, self.training))


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block())


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    return parser


def inputs_of(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    return torch.randn(6, WIDTH, generator=generator)


def reduce_over(group: dist.ProcessGroup | None, model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)


def note_step(file: TextIO, step: int, loss: Tensor) -> None:
    note = {"step": step, "loss": loss.item().hex(), "ended": 0.0, "cpu_s": 0.0}
    print(json.dumps(note), file=file, flush=True)


def train(
    pool: deadpool.JobRank,
    model: nn.Module,
    out: Path,
    *,
    reduce: Reduce | None,
    following: NextInputs,
    at_end: Callable[[], None] = lambda: None,
    **protected: object,
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + pool.rank)
    job = pool.protect(model=model, optimizer=optimizer, **protected)
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in job.steps(STEPS):
            with step:
                if not step.dry:
                    act(step.number)
                loss = model(following(step.number)).square().mean()
                loss.backward()
                if reduce is not None:
                    reduce(model, step.number)
                optimizer.step()
                optimizer.zero_grad()
                if not step.dry:
                    note_step(file, step.number, loss)
        print(json.dumps({"digest": job.digest()}), file=file)
    at_end()
    dist.destroy_process_group()
