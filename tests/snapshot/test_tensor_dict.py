"""Tensors of no module: a dict of them is captured and put back, also if the script replaced or added one."""

from __future__ import annotations

import pytest
import torch
from state_job import Net, Snapshot

from deadpool.errors import ConfigError
from deadpool.snapshot.state import ProtectedState


def state_of(tensors, *, clone_host_buffers):
    return ProtectedState(
        {"model": Net(), "averages": tensors},
        replicas={},
        rank=0,
        node_of=lambda _: 0,
        clone_host_buffers=clone_host_buffers,
    )


@pytest.mark.parametrize("clone_host_buffers", [False, True])
def test_dict_of_tensors_comes_back(clone_host_buffers):
    tensors = {"changed": torch.arange(3.0), "replaced": torch.ones(2), "grown": torch.ones(1)}
    before = {name: each.clone() for name, each in tensors.items()}
    snapshot = Snapshot(state_of(tensors, clone_host_buffers=clone_host_buffers))
    newcomers = {name: torch.zeros_like(each) for name, each in tensors.items()}
    snapshot.restore(state_of(newcomers, clone_host_buffers=clone_host_buffers))
    assert all(torch.equal(newcomers[name], before[name]) for name in before)


def test_survivor_gets_the_same_dict_back():
    tensors = {"changed": torch.arange(3.0), "replaced": torch.ones(2)}
    state = state_of(tensors, clone_host_buffers=False)
    snapshot, changed = Snapshot(state), tensors["changed"]
    changed += 1
    tensors["replaced"], tensors["added"] = torch.zeros(2), torch.ones(5)
    snapshot.restore(state)
    assert sorted(tensors) == ["changed", "replaced"]
    assert torch.equal(tensors["changed"], torch.arange(3.0)) and torch.equal(tensors["replaced"], torch.ones(2))
    assert tensors["changed"] is changed, "a tensor that other code holds was replaced"


def test_dict_of_other_things_is_refused():
    with pytest.raises(ConfigError, match="averages: got a dict without"):
        state_of({"rate": 0.1}, clone_host_buffers=False)
