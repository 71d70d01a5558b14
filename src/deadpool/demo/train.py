"""The training script of the demo: a small GPT on four ranks, sharded, replicated, or reduced by hand.

Each rank writes a file into the folder --out: one line for every step that it did, also for a step that was done again,
and a line with the final digest of its state.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import deadpool
from deadpool.demo.gpt import GPT, RandomBatches, Size, mean_loss

BATCH = 2  # sequences per rank


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", choices=("fsdp2", "ddp", "plain"), default="fsdp2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    return parser.parse_args()


def build(layout: str, size: Size) -> nn.Module:
    torch.manual_seed(0)
    model = GPT(size)
    if layout == "ddp":
        return DistributedDataParallel(model)
    if layout == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def reduce_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())


def note(file: TextIO, **values: Any) -> None:
    file.write(json.dumps(values) + "\n")
    file.flush()


def main() -> None:
    args, size = arguments(), Size()
    joined = deadpool.join(backend="gloo")
    model = build(args.layout, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    data = RandomBatches(size, joined.rank, BATCH)
    job = joined.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=data)

    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"rank{joined.rank}.jsonl").open("a") as file:
        for step in job.steps(args.steps):
            with step:
                began = time.time()
                tokens, targets = next(data)
                loss = mean_loss(model(tokens), targets)
                loss.backward()
                if args.layout == "plain":
                    reduce_by_hand(model)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if not step.dry:
                    took = {"began": began, "ended": time.time(), "cpu_s": time.process_time()}
                    note(file, step=step.number, loss=float(loss.detach()).hex(), **took)
        note(file, digest=job.digest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
