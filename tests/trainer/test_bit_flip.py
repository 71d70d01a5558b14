"""A bit that flips for a drill changes one number, hardly, and behind the script's back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deadpool.trainer.process.bit_flip import flip_bit


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
