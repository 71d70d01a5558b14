"""Protected state of DTensors and wrapped models, in one process, with uneven and empty shards too."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from state_job import Job, Net, Snapshot
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from deadpool.errors import StateError
from deadpool.snapshot.record.record import encode
from deadpool.snapshot.state.state import ProtectedState


@contextmanager
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True, scope="module")
def torch_is_warm():
    """Does a first sharded step, which leaves a group in torch's caches, before descriptors are counted."""
    with group_of_one():
        Job(make_model=sharded_net).train(1)


@pytest.fixture
def alone():
    with group_of_one():
        yield


@pytest.fixture(params=[0, 2], ids=["rank0", "rank2"])
def one_of_three(request):
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=3)
    yield request.param
    dist.destroy_process_group()


def sharded_net():
    model = Net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.first, mesh=mesh)
    return fully_shard(model, mesh=mesh, ignored_params={model.frozen})


def ddp_net():
    return nn.parallel.DistributedDataParallel(Net())


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=False),
    "foreach": lambda params: torch.optim.AdamW(params, lr=0.01, foreach=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
}


@pytest.mark.parametrize("make_model", [sharded_net, ddp_net], ids=["fsdp2", "ddp"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_wrapped_models_continue_to_the_bit(alone, name, make_model):
    job = Job(OPTIMIZERS[name], make_model)
    job.train(2)
    snapshot, at_capture = Snapshot(job.state), job.state.digest()
    expected = job.train(3)
    for target in (job, Job(OPTIMIZERS[name], make_model, seed=2)):
        snapshot.restore(target.state)
        assert target.state.digest() == at_capture
        assert target.train(3) == expected


def test_created_state_is_sharded_like_its_parameter(alone):
    job = Job(make_model=sharded_net)
    job.train(1)
    newcomer = Job(make_model=sharded_net, seed=2)
    Snapshot(job.state).restore(newcomer.state)
    for param, state in newcomer.optimizer.state.items():
        moment = state["exp_avg"]
        assert isinstance(moment, DTensor) and not moment.requires_grad
        assert (moment.shape, moment.placements, moment.device_mesh) == (
            param.shape,
            param.placements,
            param.device_mesh,
        )


def test_capture_while_parameters_are_gathered(alone):
    """During forward FSDP registers other tensors in the module, but the tensors of the boundary are copied."""
    job = Job(make_model=sharded_net)
    job.train(1)
    quiet = Snapshot(job.state)
    job.model.unshard()
    assert not isinstance(job.model.last.weight, DTensor)
    beside = memoryview(bytearray(quiet.geometry.slot_bytes))
    assert job.state.copy_bulk(beside, quiet.geometry, cancelled=lambda: False)
    start = quiet.geometry.offset("unique")
    end = start + quiet.geometry.unique_bytes
    assert beside[start:end] == quiet.slot[start:end]
    assert job.state.measure() == quiet.geometry
    job.model.reshard()


def test_uneven_shards(one_of_three):
    mesh = init_device_mesh("cpu", (3,))

    def build(seed):
        torch.manual_seed(seed)
        rows = {"uneven": 7, "short": 2, "even": 6}
        tensors = {name: distribute_tensor(torch.randn(count, 3), mesh, [Shard(0)]) for name, count in rows.items()}
        model = nn.ParameterDict({name: nn.Parameter(tensor) for name, tensor in tensors.items()})
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        return model, optimizer, ProtectedState({"m": model, "o": optimizer}, replicas={}, rank=0, node_of=int)

    model, optimizer, state = build(1)
    for param in model.values():
        optimizer.state[param]["momentum_buffer"] = torch.randn_like(param.detach())
    rows_here = {0: 3 + 1 + 2, 2: 1 + 0 + 2}[one_of_three]
    assert state.measure().unique_bytes == 2 * rows_here * 3 * 4
    newcomer, its_optimizer, its_state = build(2)
    Snapshot(state).restore(its_state)
    assert its_state.digest() == state.digest()
    assert its_optimizer.state[newcomer["uneven"]]["momentum_buffer"].shape == (7, 3)


def test_replicated_parameters_with_sharded_optimizer_state(alone):
    def build(params):
        return ZeroRedundancyOptimizer(params, torch.optim.AdamW, lr=0.01)

    job = Job(build, replicas=(0, 1))
    job.train(2)
    snapshot = Snapshot(job.state)
    parameter_bytes = sum(param.nbytes for param in job.model.parameters())
    assert snapshot.geometry.replica_bytes == parameter_bytes and snapshot.geometry.unique_bytes > parameter_bytes
    expected = job.train(3)
    for target in (job, Job(build, seed=2, replicas=(0, 1))):
        snapshot.restore(target.state)
        assert target.train(3) == expected


def test_dtensor_in_a_state_dict_is_refused(one_of_three):
    tensor = distribute_tensor(torch.ones(3), init_device_mesh("cpu", (3,)), [Shard(0)])
    with pytest.raises(StateError, match=r"ema.state_dict\(\)\['shadow'\]: a DTensor cannot be stored here; protect"):
        encode({"shadow": tensor}, "ema.state_dict()")
