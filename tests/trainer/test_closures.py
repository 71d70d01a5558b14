"""When an optimizer that runs forward and backward itself begins to change the state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deadpool.trainer.loop import after_closure


class OrderBench:
    """Notes in which order things happen in one step of an optimizer."""

    def __init__(self, kind) -> None:
        self.model = nn.Linear(2, 2)
        self.optimizer = kind(self.model.parameters())
        self.before = [each.detach().clone() for each in self.model.parameters()]
        self.order: list[str] = []
        self.optimizer.register_step_pre_hook(self.pre_hook)

    def pre_hook(self, optimizer, args, kwargs):
        self.order.append("pre-hook")
        return after_closure(args, kwargs, self.act)

    def closure(self):
        self.order.append("closure")
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    def act(self) -> None:
        self.order.append("act")
        now = [each.detach() for each in self.model.parameters()]
        assert all(torch.equal(one, other) for one, other in zip(self.before, now, strict=True)), "nothing has changed"


KINDS = {
    "adamw": torch.optim.AdamW,
    "adamw, fused": lambda params: torch.optim.AdamW(params, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "lbfgs": lambda params: torch.optim.LBFGS(params, max_iter=3),
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_name", [True, False])
def test_the_state_is_untouched_when_the_closure_has_returned_once(kind, by_name):
    bench = OrderBench(KINDS[kind])
    loss = bench.optimizer.step(closure=bench.closure) if by_name else bench.optimizer.step(bench.closure)
    assert bench.order[:3] == ["pre-hook", "closure", "act"] and bench.order.count("act") == 1
    assert loss.item() > 0
    assert not torch.equal(bench.before[0], bench.model.weight)


def test_without_a_closure_nothing_is_changed():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    assert after_closure((optimizer,), {}, lambda: None) is None
    assert after_closure((optimizer, None), {"closure": None}, lambda: None) is None


class WritesFirst(torch.optim.SGD):
    """As schedule-free optimizers and SAM do, through `.data`, so that no counter shows it."""

    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            param.data.add_(1.0)
        return super().step(closure)


def test_optimizer_that_is_not_torchs_may_change_the_state_before_its_closure():
    bench = OrderBench(WritesFirst)
    bench.optimizer.step(bench.closure)
    assert "act" not in bench.order, "its update begins with its step"


def test_closure_keeps_what_a_library_has_put_on_it():
    class Closure:
        result = 7

        def __call__(self):
            return 1

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    ((_, wrapped), _) = after_closure((optimizer, Closure()), {}, lambda: None)
    assert wrapped() == 1 and wrapped.result == 7
