"""A pipeline of two ranks for jobs under test, for `deadpool run` and torchrun alike: one file, no harness in the loop.

Writes what it did like the workload (see deadpool/demo/trial.py). The gates of acts.py stand in the backward of the
first microbatch.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from acts import act
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

import deadpool

WIDTH, BATCH, MICROBATCHES = 32, 8, 4
SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Part(nn.Module):
    """One stage. The counter is part of the digest: a forward too many, or too few, is seen in the end."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.counts:
            self.forwards += 1
        return inputs + self.dropout(self.second(torch.tanh(self.first(self.norm(inputs)))))


class Batches:
    """The same data on every rank; each takes the part that it needs."""

    def __init__(self) -> None:
        self._position = 0

    @property
    def step(self) -> int:
        return self._position - 1

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self._position)
        self._position += 1
        inputs, targets = torch.randn(2, BATCH, WIDTH, generator=generator)
        return inputs, targets

    def state_dict(self) -> dict[str, int]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._position = state["position"]


def build(kind: str, counts: bool, rank: int, world_size: int):  # type: ignore[no-untyped-def]
    per_rank = 2 if kind == "interleaved" else 1
    count = per_rank * world_size
    torch.manual_seed(0)
    parts = [Part(counts) for _ in range(count)]
    mine = {index: parts[index] for index in range(rank, count, world_size)}
    stages = [PipelineStage(part, index, count, torch.device("cpu")) for index, part in mine.items()]
    if kind == "interleaved":
        return nn.ModuleList(mine.values()), ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=F.mse_loss)
    return nn.ModuleList(mine.values()), SINGLE[kind](stages[0], MICROBATCHES, loss_fn=F.mse_loss)


def clip(model: nn.Module, limit: float) -> None:
    """By the norm over all stages."""
    squares = torch.stack([parameter.grad.square().sum() for parameter in model.parameters()]).sum()
    dist.all_reduce(squares)
    factor = (limit / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for parameter in model.parameters():
        parameter.grad.mul_(factor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", choices=(*SINGLE, "interleaved"), required=True)
    parser.add_argument("--no-rehearsal", action="store_true", help="dry steps fail before they reach the pipeline")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    pool = deadpool.join(backend="gloo")
    model, schedule = build(args.schedule, not args.no_rehearsal, pool.rank, pool.world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = Batches()
    for part in model:
        part.register_full_backward_pre_hook(lambda *_: act(batches.step))
    torch.manual_seed(1 + pool.rank)
    job = pool.protect(model=model, optimizer=optimizer, data=batches)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in job.steps(args.steps):
            with step:
                if step.dry and args.no_rehearsal:
                    raise RuntimeError("this script cannot be rehearsed")
                inputs, targets = next(batches)
                losses: list[torch.Tensor] = []
                is_first, is_last = pool.rank == 0, pool.rank == pool.world_size - 1
                schedule.step(
                    *([inputs] if is_first else []),
                    target=targets if is_last else None,
                    losses=losses if is_last else None,
                )
                clip(model, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                if not step.dry:
                    loss = float(sum(losses).detach()).hex() if is_last else "none"
                    line = {"step": step.number, "loss": loss, "ended": time.time(), "cpu_s": time.process_time()}
                    print(json.dumps(line), file=file, flush=True)
        print(json.dumps({"digest": job.digest()}), file=file, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
