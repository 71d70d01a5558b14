"""A script that says of a model that all ranks hold it alike. Ranks that are seeded alike do; else it is not true."""

import sys

import torch
import torch.distributed as dist

import deadpool

pool = deadpool.join(backend="gloo")
torch.manual_seed(pool.rank if sys.argv[1] == "false" else 0)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = pool.protect(model=model, optimizer=optimizer, replicated={"model": dist.group.WORLD})
for step in job.steps(10**6 if sys.argv[1] == "false" else 4):  # one of the next versions ends the job
    with step:
        model(torch.ones(1, 256)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
