"""An optimizer that runs forward and backward itself, as Lightning has it. The gates of a test are inside."""

from __future__ import annotations

import functools
import json

import small_job
import torch
import torch.distributed as dist
from acts import act
from torch import Tensor

import deadpool
from deadpool.trainer.step import Step

args = small_job.make_parser().parse_args()
pool = deadpool.join(backend="gloo")
model = small_job.make_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + pool.rank)
job = pool.protect(model=model, optimizer=optimizer)


def compute(step: Step) -> Tensor:
    optimizer.zero_grad()
    loss = model(small_job.inputs_of(step.number, pool.rank)).square().mean()
    if not step.dry:
        act(step.number)
    loss.backward()
    small_job.reduce_over(None, model)
    return loss


args.out.mkdir(parents=True, exist_ok=True)
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(small_job.STEPS):
        with step:
            loss = optimizer.step(functools.partial(compute, step))
            if not step.dry:
                small_job.note_step(file, step.number, loss)
    print(json.dumps({"digest": job.digest()}), file=file)
dist.destroy_process_group()
