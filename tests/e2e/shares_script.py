"""DDP or HSDP whose work comes from step.shares(), with dropout and a loader per rank; also without shares.

HSDP shards a layer by itself and then the rest, as most scripts do. With --plain-sgd gradients are neither clipped nor
scaled, so that one that is wrong by a factor shows in the losses. With --micro each share is done in several parts.

Every share writes what it saw under its own rank: the indices of its data, random numbers, its loss.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from acts import act
from small_job import make_parser
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

import deadpool

WIDTH, BATCH, PER_RANK = 16, 4, 24


class Rows(Dataset):
    """Rows of one rank: each has its index in it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __len__(self) -> int:
        return PER_RANK

    def __getitem__(self, index: int) -> torch.Tensor:
        number = 1000 * self._rank + index
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number)).index_fill_(
            0, torch.tensor(0), number
        )


class Endless:
    """Epoch after epoch of one rank's shuffled rows."""

    def __init__(self, rank: int) -> None:
        sampler = RandomSampler(Rows(rank), generator=torch.Generator().manual_seed(rank))
        self._loader = StatefulDataLoader(Rows(rank), batch_size=BATCH, sampler=sampler)
        self._iterator = iter(self._loader)

    def __next__(self) -> torch.Tensor:
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._loader)
            return next(self._iterator)

    def state_dict(self) -> dict:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self._loader.load_state_dict(state)
        self._iterator = iter(self._loader)


def make_model(layout: str) -> nn.Module:
    parts = (nn.Linear(WIDTH, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, WIDTH))
    if layout == "ddp":
        return DistributedDataParallel(nn.Sequential(*parts))
    model, world_size = nn.Sequential(*parts), dist.get_world_size()
    if layout == "fsdp2":
        return fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("dp", "shard"))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def make_optimizer(model: nn.Module, plain_sgd: bool) -> torch.optim.Optimizer:
    if plain_sgd:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


parser = make_parser()
parser.add_argument("--layout", choices=("ddp", "hsdp", "fsdp2"), default="ddp")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--without-shares", action="store_true")
parser.add_argument("--plain-sgd", action="store_true")
parser.add_argument("--micro", type=int, default=1)
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
torch.manual_seed(0)
model = make_model(args.layout)
optimizer = make_optimizer(model, args.plain_sgd)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
torch.manual_seed(1 + pool.rank)
own = Endless(pool.rank) if args.without_shares else None
how = {"data": own} if args.without_shares else {"shares": {"data": Endless}}
job = pool.protect(model=model, optimizer=optimizer, scheduler=scheduler, **how)
args.out.mkdir(parents=True, exist_ok=True)


def note(path: Path, **values: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")


def backward(rows: torch.Tensor, *, last: bool, is_own: bool) -> torch.Tensor:
    """Gradients are accumulated as frameworks have it: DDP under no_sync(), fully_shard by a flag."""
    if isinstance(model, FSDPModule) and args.micro > 1:
        model.set_requires_gradient_sync(last and is_own)
    accumulates = isinstance(model, DistributedDataParallel) and not last
    with model.no_sync() if accumulates else contextlib.nullcontext():
        loss = model(rows).square().mean()
        loss.backward()
    return loss.detach()


def work(rank: int, data: Endless, step: Any, is_own: bool = True) -> None:
    rows = next(data)
    seen, rows = rows[:, 0].int().tolist(), rows.index_fill(1, torch.tensor([0]), 0.0)
    parts = rows.chunk(args.micro)
    losses = [backward(part, last=part is parts[-1], is_own=is_own) for part in parts]
    loss = torch.stack(losses).mean()
    job.log(step, loss=float(loss), seen=str(seen))
    if not step.dry:
        by = pool.rank
        note(
            args.out / f"rank{rank}.jsonl",
            step=step.number,
            loss=float(loss).hex(),
            seen=seen,
            by=by,
            ended=0.0,
            cpu_s=0.0,
        )


for step in job.steps(args.steps):
    with step:
        if not step.dry:
            act(step.number)
        if own is not None:
            work(pool.rank, own, step)
        else:
            for share in step.shares():
                with share:
                    work(share.rank, share.data, step, share.is_own)
        if not args.plain_sgd:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
note(args.out / f"end{pool.rank}.json", digest=job.digest())
dist.destroy_process_group()
