"""A sharded model that is evaluated before it is protected, before the first step, and at the end of each step.

A forward pass without a backward one leaves the outermost module with whole parameters instead of shards.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import deadpool

STEPS = 6

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

pool = deadpool.join()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
mesh = init_device_mesh("cpu", (pool.world_size,))
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


@torch.no_grad()
def evaluate() -> str:
    return model(torch.linspace(-1, 1, 8).expand(2, 8)).sum().item().hex()


def note(**line: object) -> None:
    with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
        print(json.dumps(line), file=file, flush=True)


evaluate()
job = pool.protect(model=model, optimizer=optimizer)
evaluate()
for step in job.steps(STEPS):
    with step:
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step.number + pool.rank))
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        figures = f"{loss.item().hex()} {evaluate()}"
    if not step.dry:
        note(step=step.number, loss=figures, ended=time.time(), cpu_s=time.process_time())
digest = hashlib.sha256()
model.reshard()
for parameter in model.parameters():
    digest.update(parameter.detach().to_local().numpy().tobytes())
note(digest=digest.hexdigest())
