"""Gradients that a script keeps from step to step in DDP's buckets: refused only where averaging would differ."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from backend_fleet import run_in_children
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from deadpool.backend.groups import Groups
from deadpool.errors import ConfigError
from deadpool.trainer.adapters import DdpAdapter
from deadpool.trainer.adapters.ddp import KeptGradients

pytestmark = pytest.mark.e2e

WAYS = ("kept", "dropped after the step", "dropped before backward", "kept outside of buckets", "kept by a hook")


def as_it_is(state, bucket):  # type: ignore[no-untyped-def]  # torch reads the annotations
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def train_two_steps(way: str, world_size: int) -> bool:
    """Whether it was refused."""
    groups = Groups(timeout_s=5)
    groups.install()
    groups.init(backend="gloo", store=dist.HashStore(), rank=0, world_size=world_size, detached=True)
    view = way != "kept outside of buckets"
    model = DistributedDataParallel(nn.Linear(4, 4), gradient_as_bucket_view=view)
    if way == "kept by a hook":
        model.register_comm_hook(None, as_it_is)
    adapter, kept = DdpAdapter(model), KeptGradients([model])
    try:
        for number in range(2):
            kept.enter_step(number)
            with adapter.rehearsing():
                loss = model(torch.ones(2, 4)).sum()
                if way == "dropped before backward":
                    model.zero_grad()
                loss.backward()
            if way == "dropped after the step":
                model.zero_grad()
            kept.check()
    except ConfigError as error:
        assert "set_to_none=False" in str(error)
        return True
    finally:
        dist.destroy_process_group()
        groups.uninstall()
    return False


def refused(rank: int, port: int) -> list[bool]:
    return [*(train_two_steps(way, 3) for way in WAYS), train_two_steps("kept", 4)]


def test_gradients_that_stay_in_buckets_of_three_ranks_are_refused() -> None:
    assert run_in_children(refused) == [[True, False, False, False, False, False]]
