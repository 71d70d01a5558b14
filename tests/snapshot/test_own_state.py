"""What subclasses of Module and Optimizer add to their state dicts is captured and loaded by their own code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from state_job import Snapshot
from torch import nn

from deadpool.errors import StateError
from deadpool.snapshot.state.own_state import modules_that_add
from deadpool.snapshot.state.state import ProtectedState


class Saving(nn.Module):
    """`strict_load` looks for its weight too, as some loaders do."""

    def __init__(self, strict_load: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))
        self.history: list[Any] = []
        self.strict_load = strict_load

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "history"] = list(self.history)
        destination[prefix + "alias"] = self.scale.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        if self.strict_load:
            assert state_dict[prefix + "scale"].shape == (2,)
        self.history = state_dict.pop(prefix + "history")
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class Hooked(nn.Linear):
    """Saves and loads by hooks."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.notes: list[int] = []
        self.register_state_dict_post_hook(Hooked.save)
        self.register_load_state_dict_pre_hook(Hooked.load)

    def save(self, state: Any, prefix: str, metadata: Any) -> None:
        state[prefix + "notes"] = list(self.notes)

    def load(self, state: Any, prefix: str, *arguments: Any) -> None:
        self.notes = state.pop(prefix + "notes")


class Counting(torch.optim.SGD):
    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1, momentum=0.9)
        self.steps, self.slow = 0, torch.zeros(2)

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        self.slow = self.slow + 1
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "steps": self.steps, "slow": self.slow}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.slow = state_dict["steps"], state_dict["slow"]
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})


def protect(**objects: object) -> ProtectedState:
    return ProtectedState(objects, replicas={}, rank=0, node_of=lambda rank: rank)


@pytest.mark.parametrize("strict_load", [False, True])
def test_module_that_saves_an_attribute(strict_load):
    module, newcomer = (nn.Sequential(Saving(strict_load)) for _ in range(2))
    state, newcomer_state = protect(model=module), protect(model=newcomer)
    module[0].history.append((1, torch.ones(3)))
    snapshot = Snapshot(state)
    module[0].history.append("cut off")
    state.restore_record(snapshot.record)
    snapshot.restore(newcomer_state)
    for restored in (module, newcomer):
        [(number, tensor)] = restored[0].history
        assert number == 1 and tensor.tolist() == [1.0] * 3


def test_module_with_hooks():
    module, newcomer = Hooked(), Hooked()
    state, newcomer_state = protect(model=module), protect(model=newcomer)
    module.notes.append(3)
    Snapshot(state).restore(newcomer_state)
    assert newcomer.notes == [3]


def test_module_whose_loading_fails_is_named():
    class Failing(Saving):
        def _load_from_state_dict(self, *arguments: Any) -> None:
            raise ValueError("no")

    module = nn.Sequential(Failing())
    state = protect(model=module)
    snapshot = Snapshot(state)
    with pytest.raises(StateError, match=r"model\.0\._load_from_state_dict\(\) failed: ValueError: no"):
        snapshot.restore(state)


def test_optimizer_with_a_counter_keeps_its_groups_and_states():
    def make() -> tuple[nn.Linear, Counting, Any]:
        module = nn.Linear(2, 2)
        optimizer = Counting(module.parameters())
        return module, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def train(module: nn.Linear, optimizer: Counting) -> None:
        optimizer.zero_grad()
        module(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    module, optimizer, scheduler = make()
    newcomer, newcomer_optimizer, newcomer_scheduler = make()
    state = protect(model=module, optimizer=optimizer, scheduler=scheduler)
    newcomer_state = protect(model=newcomer, optimizer=newcomer_optimizer, scheduler=newcomer_scheduler)
    train(module, optimizer), scheduler.step()
    snapshot = Snapshot(state)
    momentum = [each["momentum_buffer"].clone() for each in optimizer.state.values()]
    groups, group, states = optimizer.param_groups, optimizer.param_groups[0], optimizer.state
    buffers = [each["momentum_buffer"] for each in states.values()]
    train(module, optimizer)
    snapshot.restore(state)
    snapshot.restore(newcomer_state)
    assert optimizer.param_groups is groups and groups[0] is group and optimizer.state is states
    assert all(each["momentum_buffer"] is known for each, known in zip(states.values(), buffers, strict=True))
    for restored in (optimizer, newcomer_optimizer):
        assert (restored.steps, restored.slow.tolist(), restored.param_groups[0]["lr"]) == (1, [1.0, 1.0], 0.1 * 0.1)
        found = [each["momentum_buffer"] for each in restored.state.values()]
        assert all(map(torch.equal, found, momentum))


def test_nothing_is_called_for_classes_of_torch():
    from torch.ao.quantization import HistogramObserver

    modules = {"linear": nn.Linear(2, 2), "norm": nn.BatchNorm1d(2), "observer": HistogramObserver(), "own": Saving()}
    assert list(modules_that_add(modules)) == ["own"]
