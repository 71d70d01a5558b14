"""DistributedDataParallel with buffers, gradients that add up over two microbatches, and a communication hook.

The first microbatch is not synchronised, and holds a collective of the script's own: a fault is felt in it.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from acts import act
from small_job import STEPS, WIDTH, inputs_of, make_parser, note_step
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import deadpool


class Noted:
    """A hook's state of the script's own, which changes with each bucket."""

    def __init__(self) -> None:
        self.calls = 0

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def weighted(state, bucket):  # type: ignore[no-untyped-def]  # torch reads the annotations
    state.calls += 1
    bucket.buffer().mul_(1.0 + 0.01 * state.calls)
    return default_hooks.allreduce_hook(None, bucket)


def add_hook(model: DistributedDataParallel) -> None:
    match args.hook:
        case "powersgd":
            state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=0.5)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        case "localsgd":
            subgroup = dist.new_group([dist.get_rank()], use_local_synchronization=True)
            local = post_localSGD_hook.PostLocalSGDState(None, subgroup, start_localSGD_iter=3)
            model.register_comm_hook(local, post_localSGD_hook.post_localSGD_hook)
        case "own":
            model.register_comm_hook(Noted(), weighted)


parser = make_parser()
parser.add_argument("--hook", choices=["none", "powersgd", "localsgd", "own"], default="none")
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
model = DistributedDataParallel(plain)
add_hook(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + pool.rank)
job = pool.protect(model=model, optimizer=optimizer)
args.out.mkdir(parents=True, exist_ok=True)
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(STEPS):
        with step:
            with model.no_sync():
                first = model(inputs_of(2 * step.number, pool.rank)).square().mean()
                first.backward()
                if not step.dry:
                    act(step.number)
                mean = first.detach().clone()
                dist.all_reduce(mean)
            loss = model(inputs_of(2 * step.number + 1, pool.rank)).square().mean() * mean
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not step.dry:
                note_step(file, step.number, loss)
    print(json.dumps({"digest": job.digest()}), file=file)
dist.destroy_process_group()
