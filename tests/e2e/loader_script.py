"""Batches come from a StatefulDataLoader whose iterator the script holds, and makes anew for each epoch.

With --cycle a generator holds it, and makes the first one in step 0. With --spent that generator also talks to the
other ranks, so that a fault's exception ends it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from small_job import WIDTH, make_model, make_parser, reduce_over, train
from torch import Tensor
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import deadpool

ROWS = 15  # three batches and a smaller one: short runs see several epochs


class Rows(Dataset[Tensor]):
    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(1_000 * self._rank + index))


def cycle() -> Iterator[Tensor]:
    while True:
        for batch in loader:
            if args.spent:
                dist.barrier()
            yield batch


def next_batch(step: int) -> Tensor:
    global held
    if args.cycle:
        batch = next(batches)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"taken-{pool.rank}-{step}").touch()
        return batch
    try:
        return next(held)
    except StopIteration:
        held = iter(loader)
        return next(held)


parser = make_parser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--cycle", action="store_true")
parser.add_argument("--spent", action="store_true")
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
model = make_model()
loader = StatefulDataLoader(
    Rows(pool.rank), batch_size=4, shuffle=True, num_workers=args.workers, persistent_workers=args.persistent
)
held = None if args.cycle else iter(loader)
batches = cycle()
train(pool, model, args.out, reduce=lambda model, _: reduce_over(None, model), following=next_batch, data=loader)
