"""Frozen layers, evaluation mode and the existence of gradients are restored too."""

from __future__ import annotations

import copy

import torch
from torch import nn

from deadpool.snapshot.state.state import ProtectedState


def protected(model: nn.Module, optimizer: torch.optim.Optimizer) -> ProtectedState:
    objects = {"model": model, "optimizer": optimizer}
    return ProtectedState(objects, replicas={}, rank=0, node_of=lambda rank: rank)


def net() -> tuple[nn.Sequential, torch.optim.Optimizer, ProtectedState]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, protected(model, optimizer)


def test_a_layer_that_was_thawed_is_thawed_in_a_newcomer():
    model, _, state = net()
    model[0].requires_grad_(False)
    record = state.record()
    newcomer, _, its_state = net()
    its_state.restore_record(record)
    assert [param.requires_grad for param in newcomer.parameters()] == [False, False, True, True, True, True]
    model[0].requires_grad_(True)
    its_state.restore_record(state.record())
    assert all(param.requires_grad for param in newcomer.parameters())


def test_a_module_in_evaluation_mode_is_so_in_a_newcomer():
    model, _, state = net()
    model[1].eval()
    newcomer, _, its_state = net()
    its_state.restore_record(state.record())
    assert [module.training for module in newcomer] == [True, False, True] and newcomer.training


def test_where_there_was_a_gradient_there_are_zeros():
    """An optimizer moves a parameter whose gradient is zero by momentum, and leaves one without a gradient alone."""
    model, optimizer, state = net()
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    model[2].weight.grad = None
    record = state.record()
    newcomer, _, its_state = net()
    its_state.restore_record(record)
    its_state.restore_gradients()
    has = [param.grad is not None for param in newcomer.parameters()]
    assert has == [param.grad is not None for param in model.parameters()]
    assert all(not param.grad.any() for param in newcomer.parameters() if param.grad is not None)


def test_a_state_is_untouched_until_something_is_written():
    model, optimizer, state = net()
    state.record()
    model(torch.randn(3, 4)).sum().backward()
    assert state.is_untouched
    optimizer.step()
    assert not state.is_untouched
    state.record()
    assert state.is_untouched
    with torch.no_grad():
        model[0].weight.mul_(0.5)
    assert not state.is_untouched


def test_an_average_that_is_no_optimizers_is_watched_too():
    model, optimizer, _ = net()
    teacher = copy.deepcopy(model)
    objects = {"model": model, "optimizer": optimizer, "teacher": teacher}
    state = ProtectedState(objects, replicas={}, rank=0, node_of=lambda rank: rank)
    state.record()
    with torch.no_grad():
        teacher[0].weight.lerp_(model[0].weight, 0.5)
    assert not state.is_untouched
