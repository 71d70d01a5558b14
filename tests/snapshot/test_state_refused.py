"""Objects that cannot be protected or restored, and the errors that a user gets."""

from __future__ import annotations

import pytest
import torch
from state_job import Data, Job, Net, Snapshot
from torch import nn

from deadpool.errors import ConfigError, StateError
from deadpool.protocol.seal import Extent
from deadpool.snapshot.state.state import ProtectedState


def generator():
    yield 1


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({}, "nothing to protect"),
        ({"data": generator()}, "data: got a generator without state_dict and load_state_dict; .*StatefulDataLoader"),
        ({"data": iter(torch.utils.data.DataLoader([1]))}, "data: got the iterator of a DataLoader, pass the loader"),
        ({"lr": 0.1}, "lr: got a float without .*pass an nn.Module, a torch.optim.Optimizer, a dict of tensors or an"),
        ({"model": nn.Linear}, "model: got the class Linear itself, pass an instance"),
        ({"models": [nn.Linear(1, 1)]}, "models: got a list .*under a keyword each"),
    ],
)
def test_objects_that_cannot_be_protected(objects, message):
    with pytest.raises(ConfigError, match=message):
        ProtectedState(objects, replicas={}, rank=0, node_of=int)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: Net(13), r"model.first.weight: shape \(13, 8\) here, \(12, 8\) in the snapshot"),
        (lambda: Net().bfloat16(), "model.frozen: dtype torch.bfloat16 here, torch.float32 in the snapshot"),
        (lambda: nn.Linear(8, 8), r"model.weight has shape \(8, 8\) here and is not in the snapshot"),
        (lambda: nn.BatchNorm1d(12), r"model.weight has shape \(12,\) here and is not in the snapshot"),
    ],
)
def test_snapshot_of_another_model_is_refused_and_nothing_changes(other, message):
    job = Job()
    job.train(1)
    snapshot = Snapshot(job.state)
    foreign = Job(make_model=other, seed=5)
    before = foreign.state.digest()
    with pytest.raises(StateError, match=message):
        snapshot.restore(foreign.state)
    assert foreign.state.digest() == before


def test_snapshot_with_missing_bytes_is_refused():
    job = Job()
    snapshot = Snapshot(job.state)
    extent = Extent(record_bytes=snapshot.extent.record_bytes, unique_bytes=0, replica_bytes=0)
    with pytest.raises(StateError, match=r"layout needs .* bytes in region 'unique', which has 0"):
        job.state.restore(snapshot.slot, snapshot.geometry, extent)


def test_objects_under_other_keywords_are_refused():
    a, b = (ProtectedState({name: Data()}, replicas={}, rank=0, node_of=int) for name in ("data", "loader"))
    with pytest.raises(StateError, match=r"the snapshot has the objects \['data'\], protected here are \['loader'\]"):
        b.restore_record(a.record())


def test_failing_load_state_dict_names_the_keyword():
    state = ProtectedState({"data": Data()}, replicas={}, rank=0, node_of=int)
    record = state.record()
    state._objects.stateful["data"].load_state_dict = lambda _: 1 / 0
    with pytest.raises(StateError, match=r"data.load_state_dict\(\) failed: ZeroDivisionError"):
        state.restore_record(record)


def test_unstorable_state_names_its_place():
    data = Data()
    data.state_dict = lambda: {"sampler": object()}
    state = ProtectedState({"data": data}, replicas={}, rank=0, node_of=int)
    with pytest.raises(StateError, match=r"data.state_dict\(\)\['sampler'\]: object of type object cannot be stored"):
        state.measure()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(2, 2, device="meta"), "model.weight is on the meta device"),
        (lambda: nn.LazyLinear(2), "model.weight is not initialised yet"),
    ],
)
def test_tensors_without_memory(model, message):
    with pytest.raises(StateError, match=message):
        ProtectedState({"model": model()}, replicas={}, rank=0, node_of=int).measure()


def test_state_of_a_parameter_that_left_the_optimizer():
    job = Job()
    job.train(1)
    job.optimizer.param_groups[0]["params"].pop()
    with pytest.raises(
        StateError, match=r"optimizer.state has entries for 1 tensors that are in none of its param_groups"
    ):
        job.state.record()


def test_not_a_record():
    with pytest.raises(StateError, match="not a boundary record"):
        Job().state.restore_record(b"\xc1nonsense")
