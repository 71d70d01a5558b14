"""Makes its default group by torch's own call, in the ways that scripts and frameworks do, and joins beside it."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from small_job import inputs_of, make_model, make_parser, reduce_over, train
from torch.distributed import init_process_group

import deadpool

parser = make_parser()
parser.add_argument("--way", choices=("torch", "twice", "join"), default="torch")
args = parser.parse_args()


def sum_of_ranks() -> float:
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    return total.item()


place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
if args.way == "join":
    deadpool.join()
    init_process_group("gloo")
else:
    init_process_group("gloo", init_method="env://", timeout=timedelta(minutes=7), **place)
told = sum_of_ranks()
if args.way == "twice":
    dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.distributed_c10d.init_process_group(timeout=timedelta(minutes=7))
    assert sum_of_ranks() == told
try:
    dist.init_process_group("gloo")
except ValueError as error:
    assert "twice" in str(error)
else:
    raise AssertionError("torch refuses that, and so must we")
pool = deadpool.join()
assert (pool.rank, pool.world_size) == (dist.get_rank(), dist.get_world_size()) == tuple(place.values())
if args.way != "join":
    assert dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).options._timeout.seconds == 420
train(
    pool,
    make_model(),
    args.out,
    reduce=lambda model, step: reduce_over(None, model),
    following=lambda step: inputs_of(step, pool.rank),
)
if args.way == "twice":
    dist.init_process_group("gloo")  # after the loop, for an evaluation of its own: also in a newcomer
    assert sum_of_ranks() == told
    dist.destroy_process_group()
