"""Data parallelism by hand, in which ranks tell each other things before the loop, for `deadpool run` and torchrun.

Rank 0 decides on the model, every rank names its seed and a token that no other run has, samples are counted. What a
rank was told it writes beside its results. The gate of step -1 stands before the loop, the others in it.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from acts import act
from torch import nn

import deadpool


def tell_each_other(rank: int, world_size: int) -> dict[str, Any]:
    config = [{"width": 24, "lr": 1e-2} if rank == 0 else None]
    dist.broadcast_object_list(config, src=0)
    assert config[0] is not None
    names: list[Any] = [None] * world_size
    dist.all_gather_object(names, {"seed": 100 + rank, "token": secrets.token_hex(8)})
    samples = torch.tensor([4 + rank])
    work = dist.all_reduce(samples, async_op=True)
    work.wait()
    token, seeds = names[0]["token"], [each["seed"] for each in names]
    return {**config[0], "token": token, "seeds": seeds, "samples": int(samples)}


class Batches:
    def __init__(self, told: dict[str, Any], rank: int) -> None:
        self._told, self._rank, self._position = told, rank, 0

    def __next__(self) -> torch.Tensor:
        act(self._position)
        generator = torch.Generator().manual_seed(self._told["seeds"][self._rank] + 1000 * self._position)
        self._position += 1
        return torch.randn(4, self._told["width"], generator=generator)

    def state_dict(self) -> dict[str, int]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._position = state["position"]


def note_told(told: dict[str, Any], out: Path, rank: int) -> None:
    """By the process that was told, under its own name: a rehearsal counts too."""
    out.mkdir(parents=True, exist_ok=True)
    draft = out / f"draft-{os.getpid()}"
    draft.write_text(json.dumps(told))
    draft.rename(out / f"told-{rank}-{os.getpid()}-{told['token']}.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    pool = deadpool.join(backend="gloo")
    told = tell_each_other(pool.rank, pool.world_size)
    note_told(told, args.out, pool.rank)
    act(-1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(told["width"], told["width"]), nn.Tanh(), nn.Linear(told["width"], 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=told["lr"])
    batches = Batches(told, pool.rank)
    job = pool.protect(model=model, optimizer=optimizer, data=batches)
    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in job.steps(args.steps):
            with step:
                loss = F.softplus(model(next(batches))).sum() / told["samples"]
                loss.backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                optimizer.step()
                optimizer.zero_grad()
                if not step.dry:
                    line = {"step": step.number, "loss": float(loss.detach()).hex()}
                    line |= {"ended": time.time(), "cpu_s": time.process_time(), "token": told["token"]}
                    print(json.dumps(line), file=file, flush=True)
        print(json.dumps({"digest": job.digest()}), file=file, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
