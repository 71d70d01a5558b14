"""Much state and hardly any step: no copy of it is done before the optimizer begins.

The ballast has no gradients, but a part of it changes with every step, so that an old copy of it would show.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from acts import act
from small_job import Block, inputs_of, make_parser, reduce_over
from torch import nn

import deadpool

FLOATS = 1 << 20

parser = make_parser()
parser.add_argument("--tensors", type=int, default=12)
parser.add_argument("--steps", type=int, required=True)
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
torch.manual_seed(0)
model = Block()
ballast = nn.ParameterList(nn.Parameter(torch.randn(FLOATS), requires_grad=False) for _ in range(args.tensors))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + pool.rank)
job = pool.protect(model=model, ballast=ballast, optimizer=optimizer)
args.out.mkdir(parents=True, exist_ok=True)
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(args.steps):
        with step:
            if not step.dry:
                act(step.number)
            loss = model(inputs_of(step.number, pool.rank)).square().mean()
            loss.backward()
            reduce_over(None, model)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                ballast[step.number % args.tensors][step.number] += loss
            if not step.dry:
                note = {"step": step.number, "loss": loss.item().hex(), "ended": 0.0, "cpu_s": 0.0}
                print(json.dumps(note), file=file, flush=True)
    print(json.dumps({"digest": job.digest()}), file=file)
dist.destroy_process_group()
