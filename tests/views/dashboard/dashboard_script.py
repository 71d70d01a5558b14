"""A small job that trains on for long, says what it does, and logs its loss."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import deadpool

pool = deadpool.join(backend="gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
job = pool.protect(model=model, optimizer=optimizer)
for step in job.steps(100_000):
    with step:
        x = torch.randn(16, 128)
        loss = ((model(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
        job.log(step, loss=loss)
        print(f"rank {pool.rank} step {int(step)} loss {loss.item():.4f}", flush=True)
