"""Batches depend on a counter that the script keeps in a variable, or, with --protected, in an object that is passed to
protect(): without it no recovery is exact."""

from __future__ import annotations

import torch.distributed as dist
from small_job import inputs_of, make_model, make_parser, reduce_over, train

import deadpool


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


parser = make_parser()
parser.add_argument("--protected", action="store_true")
args = parser.parse_args()
pool = deadpool.join()
counter = Counter()
train(
    pool,
    make_model(),
    args.out,
    reduce=lambda model, _: reduce_over(dist.group.WORLD, model),
    following=lambda step: inputs_of(step, pool.rank) * (1 + 0.01 * counter.next()),
    **({"counter": counter} if args.protected else {}),
)
