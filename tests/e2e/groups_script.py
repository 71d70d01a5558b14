"""Gradients go over a process group that is made in a step: a new one in each, or one that is kept."""

from __future__ import annotations

import torch.distributed as dist
from small_job import inputs_of, make_model, make_parser, reduce_over, train
from torch import nn

import deadpool

kept: dist.ProcessGroup | None = None


def over_a_new_group(model: nn.Module, step: int) -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    reduce_over(group, model)
    dist.destroy_process_group(group)


def over_a_kept_group(model: nn.Module, step: int) -> None:
    global kept
    if kept is None and step >= args.made_in:
        kept = dist.new_group(list(range(dist.get_world_size())), group_desc="kept")
    reduce_over(kept, model)


parser = make_parser()
parser.add_argument("--made-in", type=int, default=-1, help="the step that makes the group; -1: each one of its own")
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
reduce = over_a_new_group if args.made_in < 0 else over_a_kept_group
train(pool, make_model(), args.out, reduce=reduce, following=lambda step: inputs_of(step, pool.rank))
