"""The training script of the demo, the benchmarks and the end-to-end tests, for `deadpool run` and torchrun alike.

Writes what it did into --out: per rank one line for each step it did (also one done again), and the final digest.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import deadpool
from deadpool.workload.gpt import GPT, Batches, Size


def build(layout: str, size: Size, world_size: int) -> nn.Module:
    torch.manual_seed(0)
    model = GPT(size)
    if layout == "fsdp2":
        mesh = init_device_mesh("cpu", (world_size,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif layout == "ddp":
        return DistributedDataParallel(model)
    return model


def reduce_gradients(model: nn.Module) -> None:
    """Data parallelism by hand, for the layout without a wrapper."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", choices=("fsdp2", "ddp", "plain"), default="fsdp2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=2, help="sequences per rank")
    parser.add_argument("--alternate", type=int, default=0, help="switch protection off and on every so many steps")
    parser.add_argument("--clip", type=float, default=0.0, help="clip gradients to this global norm")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=2048)
    return parser.parse_args()


def note(file: TextIO, **values: object) -> None:
    file.write(json.dumps(values) + "\n")
    file.flush()


def clocks() -> dict[str, float]:
    """Wall clock, and CPU time of this process with all its threads."""
    return {"ended": time.time(), "cpu_s": time.process_time()}


def main() -> None:
    args = arguments()
    size = Size(
        layers=args.layers,
        width=args.width,
        sequence=args.sequence,
        vocabulary=args.vocabulary,
        dropout=args.dropout,
    )
    pool = deadpool.join(backend="gloo")
    model = build(args.layout, size, pool.world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    batches = Batches(size, pool.rank, args.batch)
    torch.manual_seed(1 + pool.rank)
    job = pool.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=batches)

    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in job.steps(args.steps):
            if args.alternate:
                job.enabled = step.number // args.alternate % 2 == 0
            with step:
                began = time.time()
                tokens, targets = next(batches)
                loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
                loss.backward()
                if args.layout == "plain":
                    reduce_gradients(model)
                if args.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if not step.dry:
                    note(file, step=step.number, loss=float(loss.detach()).hex(), began=began, **clocks())
        note(file, digest=job.digest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
