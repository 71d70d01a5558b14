"""An audited step: hooks digest a rank's own gradients in the order of backward, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from deadpool.snapshot.state.state_parts import begin_digest, finish_digests
from deadpool.trainer.adapters.fsdp2 import leaves_of
from deadpool.trainer.process.bit_flip import GradientFlip
from deadpool.trainer.step_audit import GradientDigests, _first_difference


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def compute(model: nn.Module, digests: GradientDigests | None = None) -> list[Tensor]:
    """One backward pass. Returns the gradients of all parameters."""
    model.zero_grad()
    handles = [digests.watch(name, each) for name, each in leaves_of([model])] if digests is not None else []
    model(torch.arange(12.0).view(3, 4)).square().mean().backward()
    for handle in handles:
        handle.remove()
    return [each.grad for each in model.parameters()]


def test_hooks_see_what_this_rank_computed(model):
    digests = GradientDigests()
    gradients = dict(zip((name for name, _ in model.named_parameters()), compute(model, digests), strict=True))
    names = [name for name, _ in digests.named()]
    assert sorted(names) == sorted(gradients) and names[0].startswith("1."), "the last layer comes first"
    assert dict(digests.named()) == {
        name: finish_digests([begin_digest(each)])[0] for name, each in gradients.items()
    }, "nothing was reduced here"


def test_watching_changes_nothing_and_leaves_nothing_behind(model):
    unwatched = compute(model)
    watched = compute(model, GradientDigests())
    assert all(torch.equal(one, other) for one, other in zip(unwatched, watched, strict=True))
    assert not any(each._backward_hooks for each in model.parameters())


def test_flipped_bit_of_a_gradient_is_the_first_difference(model):
    first, again = GradientDigests(), GradientDigests()
    before = compute(model, first)
    flip = GradientFlip([model], 6)  # of the third parameter
    after = compute(model, again)
    flip.remove()
    changed = [int((one != other).sum()) for one, other in zip(before, after, strict=True)]
    assert flip.has_flipped and changed == [0, 0, 1, 0]
    stages = [((), each.named(), (), ()) for each in (first, again)]
    assert _first_difference(*stages) == "gradient of 1.weight, before it was reduced"
    assert _first_difference(stages[0], stages[0]) == ""


def test_gradient_of_a_second_backward_counts_too(model):
    digests = GradientDigests()
    handles = [digests.watch(name, each) for name, each in leaves_of([model])]
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
    for handle in handles:
        handle.remove()
    assert len(digests.named()) == 2 * len(list(model.parameters()))


def test_part_that_is_missing_the_second_time_differs():
    first = ((("object data", 1), ("parameter w", 2)), (), (), ())
    assert _first_difference(first, ((("object data", 1),), (), (), ())) == "parameter w before the step"
