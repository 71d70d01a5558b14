"""`deadpool.protect`, the one call that a script adds before its loop. tests/e2e/test_examples.py has whole jobs."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

import deadpool


def test_before_there_is_a_group_it_says_what_to_call():
    with pytest.raises(deadpool.ConfigError, match=r"call torch\.distributed\.init_process_group first"):
        deadpool.protect(model=nn.Linear(2, 2))


def test_without_deadpool_the_same_loop_trains(capfd):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Linear(2, 2)
        job: deadpool.Job = deadpool.protect(model=model, optimizer=SGD(model.parameters(), lr=0.1))
        done = []
        for step in job.steps(3):
            with step:
                done.append(step.number)
    finally:
        dist.destroy_process_group()
    assert done == [0, 1, 2]
    assert "it is not protected: start it with `deadpool run`" in capfd.readouterr().err


def test_what_join_returns_has_its_former_name_for_one_more_release():
    assert deadpool.Pool is deadpool.JobRank
