"""Plain attributes of modules: what a script changed is restored, what a process has built is left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from state_job import Snapshot
from torch import nn, ones

from deadpool.snapshot.state.state import ProtectedState


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(2, 2), nn.Dropout(0.5)
        self.temperature, self.calls, self.phase, self.limits, self.is_warm = 1.0, 0, None, (0, 1), False
        self.cache: dict[int, int] = {}
        self.table = None


def protect(module: nn.Module) -> ProtectedState:
    return ProtectedState({"model": module}, replicas={}, rank=0, node_of=lambda rank: rank)


@pytest.fixture(params=["survivor", "newcomer"])
def trial(request):
    """A module and its state, and the same of the process that takes over."""
    module = Layer()
    state = protect(module)
    other = module if request.param == "survivor" else Layer()
    return module, state, other, state if other is module else protect(other)


def test_what_a_step_changed_is_there_again(trial):
    module, state, other, other_state = trial
    module.dropout.p, module.temperature, module.calls, module.phase = 0.1, -0.0, 7, "late"
    module.limits, module.is_warm, module.bonus = (2, (math.inf, b"x")), True, math.nan
    del module.table
    snapshot = Snapshot(state)
    module.dropout.p, module.calls, module.later = 0.9, 8, 1
    snapshot.restore(other_state)
    assert (other.dropout.p, other.temperature, other.calls, other.phase) == (0.1, 0.0, 7, "late")
    assert math.copysign(1, other.temperature) == -1 and other.limits == (2, (math.inf, b"x"))
    assert other.is_warm is True and math.isnan(other.bonus)
    assert not hasattr(other, "later") and not hasattr(other, "table")


def test_numbers_of_numpy_are_numbers(trial):
    """A temperature that numpy anneals becomes one, and the flag of a module with another cache is left alone."""
    module, state, other, other_state = trial
    module.temperature, module.is_warm = module.temperature * np.exp(-1.0), np.bool_(True)
    module.cache[1] = 1
    snapshot = Snapshot(state)
    module.temperature *= np.float64(0.5)
    other.cache.clear()
    snapshot.restore(other_state)
    assert type(other.temperature) is np.float64 and other.temperature == np.exp(-1.0)


def test_what_a_step_changed_back_is_as_at_first(trial):
    module, state, other, other_state = trial
    module.calls, module.limits = 3, (5, 6)
    Snapshot(state)
    module.calls, module.limits = 0, (0, 1)
    snapshot = Snapshot(state)
    module.calls = other.calls = 9
    snapshot.restore(other_state)
    assert (other.calls, other.limits) == (0, (0, 1))


@pytest.mark.parametrize("build", ["filled", "made"])
def test_flag_of_something_that_this_process_has_not_built_is_left_alone(build):
    module, other = Layer(), Layer()
    state, other_state = protect(module), protect(other)
    module.is_warm, module.calls, module.phase = True, 4, "warm"
    if build == "filled":
        module.cache[1] = 1
    else:
        module.table = object()
    Snapshot(state).restore(other_state)
    assert (other.is_warm, other.phase) == (False, None), "the cache is not built here"
    assert other.calls == 4, "a number is restored all the same"


def test_attribute_that_gives_way_to_another_one(trial):
    """As many as before, other names."""
    module, state, other, other_state = trial
    Snapshot(state)
    del module.phase
    module.stage = None
    snapshot = Snapshot(state)
    snapshot.restore(other_state)
    assert not hasattr(other, "phase") and other.stage is None


def test_flags_of_a_wrapper_are_not_touched():
    class DistributedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.require_forward_param_sync = Layer(), True

    wrapper = DistributedDataParallel()
    state = protect(wrapper)
    snapshot = Snapshot(state)
    wrapper.require_forward_param_sync = False
    snapshot.restore(state)
    assert wrapper.require_forward_param_sync is False


def test_attributes_are_not_written_into_a_module_of_another_class():
    one, other = nn.Sequential(nn.Dropout(0.5)), nn.Sequential(nn.Dropout(0.5))
    states = [ProtectedState({"model": each}, replicas={}, rank=0, node_of=int) for each in (one, other)]
    one[0].p = 0.1
    snapshot = Snapshot(states[0])
    other[0] = nn.Softplus()
    snapshot.restore(states[1])
    assert not hasattr(other[0], "p")


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.cache, self.use_lora, self.count = nn.Parameter(ones(2)), dict[str, int](), False, 0


def test_flags_that_a_later_step_changes_beside_other_containers_are_at_risk():
    model = Caching()
    state = ProtectedState({"model": model}, replicas={}, rank=0, node_of=int)
    model.cache["first"], model.use_lora = 1, True  # the first step builds the cache, and a newcomer's does too
    state.record()
    assert state.take_flags_at_risk() == ()
    model.count += 1
    state.record()
    assert state.take_flags_at_risk() == ()
    model.use_lora = False
    model.count += 1
    state.record()
    assert [state.take_flags_at_risk(), state.take_flags_at_risk()] == [("model.use_lora",), ()]
