"""A script that moves or converts its model while it has gradients: torch swaps tensors then, which weak references of
ours must not forbid."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deadpool.snapshot.identity.gradients import GradientObjects


@pytest.fixture
def swapping():
    """As torch always does it for DTensors."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def with_gradients() -> nn.Linear:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    return model


def test_model_that_is_converted_keeps_its_gradients(swapping):
    model, gradients = with_gradients(), GradientObjects()
    params = list(model.parameters())
    gradients.remember(params)
    model.double()
    assert [param.grad.dtype for param in params] == [torch.float64, torch.float64]
    having = gradients.remember(params)
    kept = [param.grad for param in params]
    gradients.restore(params, having)
    assert all(param.grad is each and not each.any() for param, each in zip(params, kept, strict=True))


def test_fault_after_the_conversion_gives_back_the_gradient_that_is_there(swapping):
    model, gradients = with_gradients(), GradientObjects()
    params = list(model.parameters())
    having = gradients.remember(params)
    model.double().float()
    kept = [param.grad for param in params]
    gradients.restore(params, having)
    assert all(param.grad is each and not each.any() for param, each in zip(params, kept, strict=True))
