"""Coordinates of ranks are read from the meshes of DTensors, where one mesh has all ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from deadpool.trainer.adapters.plain import whole_mesh

WORLD = 8


@pytest.fixture(autouse=True)
def eight_ranks():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    yield
    dist.destroy_process_group()


def test_of_a_part_the_whole_is_found():
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    plain, sharded = torch.zeros(4), distribute_tensor(torch.zeros(4, 4), mesh["dp", "tp"], [Replicate(), Shard(0)])
    assert whole_mesh([plain, sharded], WORLD) == (("pp", "dp", "tp"), (2, 2, 2))


def test_nothing_is_told_where_nothing_is_known():
    unnamed = distribute_tensor(torch.zeros(8), init_device_mesh("cpu", (8,)), [Shard(0)])
    named = distribute_tensor(torch.zeros(8), init_device_mesh("cpu", (8,), mesh_dim_names=("dp",)), [Shard(0)])
    assert whole_mesh([torch.zeros(2)], WORLD) is None
    assert whole_mesh([unnamed], WORLD) is None
    assert whole_mesh([named], 2 * WORLD) is None
    assert whole_mesh([named], WORLD) == (("dp",), (8,))
