"""Parameters and optimizer state that overlap themselves: x.expand(...)."""

from __future__ import annotations

import pytest
import torch
from state_job import Snapshot
from torch import nn

from deadpool.snapshot.state.state import ProtectedState


class Stage:
    """A model with an expanded parameter over a base that it holds, and expanded state, after `steps` updates."""

    def __init__(self, steps: int = 1) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.base = torch.full((1, 4), 2.0)
        self.model.scale = nn.Parameter(self.base.expand(4, 4), requires_grad=False)
        self.optimizer = torch.optim.SGD(list(self.model[0].parameters()), lr=0.1, momentum=0.9)
        self.objects = ProtectedState(
            {"model": self.model, "optimizer": self.optimizer}, replicas={}, rank=0, node_of=lambda rank: rank
        )
        for _ in range(steps):
            self.train()

    @property
    def state(self) -> dict[str, torch.Tensor]:
        return self.optimizer.state[self.model[0].weight]

    def train(self) -> None:
        self.model(torch.randn(3, 4)).square().mean().backward()
        self.optimizer.step()
        self.base.mul_(1.5)
        self.state["factor"] = self.state["momentum_buffer"].mean().expand(4, 4)


def test_survivor_gets_its_elements_in_the_memory_that_they_shared():
    stage = Stage()
    expected, factor = stage.objects.digest(), stage.state["factor"]
    snapshot = Snapshot(stage.objects)
    stage.train()
    snapshot.restore(stage.objects)
    assert stage.objects.digest() == expected
    assert stage.base.eq(3).all() and stage.model.scale.data_ptr() == stage.base.data_ptr()
    assert stage.state["factor"] is factor and factor.stride() == (0, 0)


@pytest.mark.parametrize("steps", [0, 2], ids=["without state", "with state"])
def test_newcomer(steps):
    stage, newcomer = Stage(), Stage(steps)
    Snapshot(stage.objects).restore(newcomer.objects)
    assert newcomer.objects.digest() == stage.objects.digest()
    assert newcomer.base.eq(3).all() and newcomer.model.scale.data_ptr() == newcomer.base.data_ptr()


def test_what_was_not_expanded_when_it_was_stored_gets_memory_of_its_own():
    stage, newcomer = Stage(), Stage()
    stage.model.scale.data = torch.arange(16.0).view(4, 4)
    Snapshot(stage.objects).restore(newcomer.objects)
    assert newcomer.model.scale.equal(stage.model.scale)


def test_what_is_expanded_only_where_it_was_stored():
    stage, newcomer = Stage(), Stage()
    newcomer.model.scale.data = torch.zeros(4, 4)
    Snapshot(stage.objects).restore(newcomer.objects)
    assert newcomer.objects.digest() == stage.objects.digest()


def test_states_that_share_an_element_come_apart_where_they_differ():
    stage, newcomer = Stage(), Stage()
    zero = torch.zeros(())
    for each, values in ((stage, (1.0, 2.0)), (newcomer, (0.0, 0.0))):
        for param, value in zip(each.model[0].parameters(), values, strict=True):
            element = torch.tensor(value) if value else zero
            each.optimizer.state[param]["factor"] = element.expand(param.shape)
    Snapshot(stage.objects).restore(newcomer.objects)
    assert newcomer.objects.digest() == stage.objects.digest()
