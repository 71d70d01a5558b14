"""The second job of `benchmarks/pool.py`: a small regression with DDP, written as a user would write it."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import deadpool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--stop", type=Path, required=True)
    args = parser.parse_args()
    pool = deadpool.join(backend="gloo")
    train(pool, args)
    # The model is gone by now: torch 2.13 can hang where DDP lets go of a group that was destroyed before.
    dist.destroy_process_group()


def train(pool: Any, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(512, 64)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + pool.rank)
    job = pool.protect(model=model, optimizer=optimizer)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        for step in job.steps(args.steps):
            if args.stop.exists() and step.number >= int(args.stop.read_text() or step.number + 1):
                break
            with step:
                time.sleep(float(os.environ.get("DEADPOOL_CHAOS_PACE_S", "0")))
                batch = torch.randn(32, 64)
                loss = (model(batch) - batch).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if not step.dry:
                    told = {"step": step.number, "loss": float(loss).hex(), "ended": time.time(), "cpu_s": 0.0}
                    file.write(json.dumps(told) + "\n")
                    file.flush()
        file.write(json.dumps({"digest": job.digest()}) + "\n")


if __name__ == "__main__":
    main()
