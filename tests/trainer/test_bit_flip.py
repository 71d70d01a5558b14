"""A bit that flips for a drill changes one number, hardly, and behind the script's back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deadpool.config.orders import IN_STEP
from deadpool.trainer.process.bit_flip import STEP_FLIPS, flip_bit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_number_of_one_parameter_changes_a_little(dtype):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(dtype)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    counts = [parameter._version for parameter in model.parameters()]
    assert flip_bit("parameter", [model], [], 2)
    changes = [(one - other.detach()).abs() for one, other in zip(before, model.parameters(), strict=True)]
    assert sum(int((change > 0).sum()) for change in changes) == 1
    assert max(float(change.max()) for change in changes) < 0.01
    assert [parameter._version for parameter in model.parameters()] == counts, "nobody counts it as a write"


def test_the_same_bit_twice_is_as_before():
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    assert flip_bit("parameter", [model], [], 0) and flip_bit("parameter", [model], [], 0)
    assert torch.equal(before, model.weight)


def test_a_moment_and_not_the_count_of_steps():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    assert not flip_bit("moment", [model], [optimizer], 0), "there is none before the first step"
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    state = {name: value.clone() for name, value in optimizer.state[model.weight].items()}
    assert flip_bit("moment", [model], [optimizer], 0)
    assert torch.equal(state["step"], optimizer.state[model.weight]["step"])
    assert not torch.equal(state["exp_avg"], optimizer.state[model.weight]["exp_avg"])


def gradients(model: nn.Module, optimizer: torch.optim.Optimizer, flip: str = "") -> tuple[float, list[torch.Tensor]]:
    """Returns the loss, and what the optimizer takes in one step, in which a bit may flip."""
    torch.manual_seed(7)
    flips = [STEP_FLIPS[flip]([model], 1)] if flip else []
    loss = model(torch.randn(4, 8)).square().sum()
    loss.backward()
    for each in flips:
        each.taken(optimizer)
        each.remove()
    assert all(each.has_flipped for each in flips)
    taken = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    return float(loss.detach()), taken


@pytest.mark.parametrize("flip", IN_STEP)
def test_what_flips_inside_of_a_step_changes_what_the_optimizer_takes(flip):
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss, right = gradients(model, optimizer)
    wrong_loss, wrong = gradients(model, optimizer, flip)
    assert (loss != wrong_loss) == (flip == "activation"), "the others come after the loss"
    changed = [int((one != other).sum()) for one, other in zip(right, wrong, strict=True)]
    assert sum(changed) > 0 and (flip == "activation" or sum(changed) == 1)
    _, after = gradients(model, optimizer)
    assert all(map(torch.equal, right, after)), "nothing is left of it in the next step"


def test_nothing_flips_without_a_model():
    assert not STEP_FLIPS["activation"]([], 3).has_flipped
    assert not STEP_FLIPS["gradient"]([], 3).has_flipped
