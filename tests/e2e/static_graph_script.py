"""DistributedDataParallel with a static graph, whose buckets change after the second backward: in the first step, or
between the first steps, depending on how many backwards a step has."""

from __future__ import annotations

import json

import torch
from acts import act
from small_job import STEPS, WIDTH, inputs_of, make_parser, note_step
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import deadpool

parser = make_parser()
parser.add_argument("--backwards", type=int, required=True, help="of each step")
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
torch.manual_seed(0)
layers = [nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 5)]
model = DistributedDataParallel(nn.Sequential(*layers), static_graph=True, bucket_cap_mb=0.001)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = pool.protect(model=model, optimizer=optimizer)
args.out.mkdir(parents=True, exist_ok=True)
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(STEPS):
        with step:
            for part in range(args.backwards):
                if not step.dry and part == args.backwards - 1:
                    act(step.number)
                loss = model(inputs_of(args.backwards * step.number + part, pool.rank)).square().mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not step.dry:
                note_step(file, step.number, loss)
    print(json.dumps({"digest": job.digest()}), file=file)
