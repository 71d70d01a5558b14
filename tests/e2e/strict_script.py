"""A script to which every warning is an error, and which makes a process group in each of its steps."""

from __future__ import annotations

import warnings

import torch.distributed as dist
from acts import act
from small_job import inputs_of, make_model, make_parser, reduce_over, train
from torch import nn

import deadpool

warnings.simplefilter("error")


def over_a_new_group(model: nn.Module, step: int) -> None:
    """A survivor that has it when it goes back to the beginning of the step is told that it is forgotten."""
    group = dist.new_group(list(range(dist.get_world_size())))
    act(100 * (1 + pool.rank) + step)
    reduce_over(group, model)
    dist.destroy_process_group(group)


args = make_parser().parse_args()
pool = deadpool.join(backend="gloo")
train(pool, make_model(), args.out, reduce=over_a_new_group, following=lambda step: inputs_of(step, pool.rank))
