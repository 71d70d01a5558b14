"""Gradients go over a process group that is made in a step: a new one in each, or one that is kept.

Or over the default group, which some steps destroy and make again, as libraries do.
"""

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


def over_a_new_world(model: nn.Module, step: int) -> None:
    if step in args.worlds_in:
        dist.destroy_process_group()
        dist.init_process_group("gloo")
    reduce_over(None, model)


parser = make_parser()
parser.add_argument("--made-in", type=int, default=-1, help="the step that makes the group; -1: each one of its own")
parser.add_argument("--worlds-in", type=int, nargs="+", default=[], help="steps that make the default group again")
args = parser.parse_args()
pool = deadpool.join(backend="gloo")
reduce = over_a_new_world if args.worlds_in else over_a_new_group if args.made_in < 0 else over_a_kept_group
train(pool, make_model(), args.out, reduce=reduce, following=lambda step: inputs_of(step, pool.rank))
