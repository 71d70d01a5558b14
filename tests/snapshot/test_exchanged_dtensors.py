"""Parameters that are DTensors and of which a script exchanges the object or the memory: under tensor parallelism they
are followed as plain ones are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from state_job import Snapshot
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from deadpool.snapshot.state.state import ProtectedState


class Stage:
    """A model whose linear layers are split by columns over two ranks, of which this is the second, after an update."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.mesh = init_device_mesh("cpu", (2,))
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        for layer in self.model:
            parallelize_module(layer, self.mesh, ColwiseParallel())
        with torch.no_grad():  # nothing came from rank 0, which is not there
            for param in self.model.parameters():
                shard(param).uniform_()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.state = ProtectedState(
            {"model": self.model, "optimizer": self.optimizer}, replicas={}, rank=1, node_of=lambda rank: rank
        )
        self.train()

    def train(self) -> None:
        for param in self.model.parameters():
            param.grad = torch.full_like(param.detach(), 1.0)
        self.optimizer.step()

    def parameter(self, value: float) -> nn.Parameter:
        """A parameter like the weights of the layers."""
        weight = self.model[0].weight
        shard = torch.full_like(weight.to_local().detach(), value)
        return nn.Parameter(DTensor.from_local(shard, self.mesh, weight.placements, run_check=False))


@pytest.fixture
def stage() -> Iterator[Stage]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield Stage()
    dist.destroy_process_group()


def shard(param: Tensor) -> Tensor:
    found: Tensor = param._local_tensor  # type: ignore[attr-defined]
    return found


def exchange_object(param: Tensor, memory: Tensor) -> None:
    param._local_tensor = memory  # type: ignore[attr-defined]


def exchange_data(param: Tensor, memory: Tensor) -> None:
    shard(param).data = memory


def swap(param: Tensor, memory: Tensor) -> None:
    other = DTensor.from_local(memory, param.device_mesh, param.placements, run_check=False)  # type: ignore[attr-defined]
    torch.utils.swap_tensors(param, nn.Parameter(other))


@pytest.mark.parametrize("exchange", [exchange_object, exchange_data, swap])
@pytest.mark.parametrize("way", ["kept", "loaded"])
def test_memory_that_was_put_under_a_parameter_for_a_while(stage, exchange, way):
    param = stage.model[0].weight
    held, expected, address = shard(param), shard(param).clone(), shard(param).data_ptr()
    snapshot = Snapshot(stage.state)
    average = torch.full((2, 4), 7.0)
    exchange(param, average)
    if way == "kept":
        stage.state.restore_record(snapshot.record)
    else:
        snapshot.restore(stage.state)
    assert shard(param) is held and held.data_ptr() == address and held.equal(expected)
    assert average.eq(7).all()


def test_memory_of_optimizer_state(stage):
    moment = stage.optimizer.state[stage.model[0].weight]["momentum_buffer"]
    held, expected = shard(moment), shard(moment).clone()
    snapshot = Snapshot(stage.state)
    exchange_object(moment, torch.full((2, 4), 7.0))
    snapshot.restore(stage.state)
    assert shard(moment) is held and held.equal(expected)


@pytest.mark.parametrize("exchange", [exchange_object, exchange_data, swap])
def test_memory_that_stays_under_a_parameter_is_captured(stage, exchange):
    param = stage.model[0].weight
    stage.state.record()
    exchange(param, torch.full((2, 4), 7.0))
    assert not stage.state.is_as_recorded
    newcomer = Stage()
    Snapshot(stage.state).restore(newcomer.state)
    assert shard(newcomer.model[0].weight).eq(7).all()


def test_parameter_that_was_exchanged_is_the_one_that_is_captured(stage):
    stage.state.record()
    stage.model[1].weight = stage.parameter(3.0)
    snapshot = Snapshot(stage.state)
    with torch.no_grad():
        shard(stage.model[1].weight).zero_()
    snapshot.restore(stage.state)
    assert shard(stage.model[1].weight).eq(3).all()
    assert stage.state.take_structure_change() is None  # a newcomer can have it


def test_what_a_step_that_was_cut_off_exchanged_is_put_back(stage):
    weight, expected = stage.model[0].weight, shard(stage.model[0].weight).clone()
    snapshot = Snapshot(stage.state)
    stage.model[0].weight = other = stage.parameter(3.0)
    snapshot.restore(stage.state)
    assert stage.model[0].weight is weight and shard(weight).equal(expected)
    assert shard(other).eq(3).all()


def test_newcomer_gets_apart_what_the_snapshot_has_apart(stage):
    stage.model[1].weight = stage.parameter(3.0)
    newcomer = Stage()
    Snapshot(stage.state).restore(newcomer.state)
    assert newcomer.state.digest() == stage.state.digest()
    old, new = newcomer.optimizer.param_groups[0]["params"][2], newcomer.model[1].weight
    assert old is not new and shard(new).eq(3).all() and new.placements == old.placements


def test_parameter_that_is_placed_otherwise_is_named(stage):
    stage.state.record()
    stage.state.take_structure_change()
    stage.model[1].weight = nn.Parameter(
        distribute_tensor(torch.ones(4, 4), stage.mesh, [Replicate()], src_data_rank=None)
    )
    stage.state.record()
    change = stage.state.take_structure_change()
    assert change is not None and change.reshaped == ("model.1.weight",)
