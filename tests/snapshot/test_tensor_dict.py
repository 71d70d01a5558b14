"""Tensors of no module: a dict of them is captured like parameters, and what a cut-off step did to it is undone."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from state_job import Net, Snapshot

from deadpool.errors import ConfigError, StateError
from deadpool.snapshot.state.state import ProtectedState


def state_of(tensors):
    return ProtectedState({"model": Net(), "averages": tensors}, replicas={}, rank=0, node_of=lambda _: 0)


def make():
    return {"layer.weight": torch.arange(3.0), "training": torch.ones(2), "whole": torch.arange(4)}


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_newcomer_gets_the_values(kind):
    before = kind(make())
    snapshot = Snapshot(state_of(before))
    newcomers = kind({name: torch.zeros_like(each) for name, each in make().items()})
    snapshot.restore(state_of(newcomers))
    assert list(newcomers) == list(before)
    assert all(torch.equal(newcomers[name], each) for name, each in make().items())


def test_survivor_gets_its_dict_back_whatever_the_step_did_to_it():
    tensors = make()
    state, held = state_of(tensors), dict(tensors)
    snapshot = Snapshot(state)
    tensors["layer.weight"] += 1
    tensors["training"] = tensors["layer.weight"]  # two names for one tensor: none may be written through the other
    tensors["whole"] = tensors.pop("whole")
    tensors["added"] = torch.ones(5)
    snapshot.restore(state)
    assert list(tensors) == list(held) and all(tensors[name] is held[name] for name in held)
    assert all(torch.equal(tensors[name], each) for name, each in make().items())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.update(training=torch.zeros(2)), "'training'"),
        (lambda tensors: tensors.update(added=torch.zeros(2)), "'added'"),
        (lambda tensors: tensors.pop("whole"), "'whole'"),
        (lambda tensors: tensors.update(training=tensors.pop("training")), "entries"),
    ],
)
def test_step_that_changes_the_dict_itself_is_refused(change, named):
    tensors = make()
    state = state_of(tensors)
    state.record()
    change(tensors)
    with pytest.raises(StateError, match=f"averages: .*{named}.*in place"):
        state.record()


def test_dict_of_other_things_is_refused():
    with pytest.raises(ConfigError, match="averages: got a dict without"):
        state_of({"rate": 0.1})
    with pytest.raises(ConfigError, match="requires gradients: put such tensors into"):
        state_of({"weight": torch.ones(2, requires_grad=True)})


def test_subclass_with_a_state_of_its_own_is_asked_for_it():
    class Averages(dict):
        count = 7

        def state_dict(self):
            return {"count": self.count, "tensors": dict(self)}

        def load_state_dict(self, state):
            self.count = state["count"]
            self.update(state["tensors"])

    snapshot = Snapshot(state_of(Averages(make())))
    newcomers = Averages(make())
    newcomers.count = 0
    snapshot.restore(state_of(newcomers))
    assert newcomers.count == 7
