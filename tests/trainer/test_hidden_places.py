"""Values that steps change in places that are no variables are told: attributes of parameters and modules, hooks, what
an optimizer keeps and its state lacks, settings of the process."""

from __future__ import annotations

import argparse
import contextvars
import functools
import os
import threading
import types
import weakref
from collections import ChainMap, UserDict
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from test_carried_values import Told, steps
from torch import Tensor, nn


def of_a_parameter(told: Told) -> None:
    model = nn.Linear(2, 2)
    model.weight.velocity, model.bias.count, model.bias.known = torch.zeros(2), 0, "a"
    for _ in steps(told, model=model):
        model.weight.velocity.add_(1)
        model.bias.count += 1


class Fade:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.calls += 1
        return output / self.calls


def of_a_hook(told: Told) -> None:
    model = nn.Linear(2, 2)
    model.register_forward_hook(Fade())
    for _ in steps(told, model=model):
        model(torch.ones(1, 2))


def smooth_gradients(weight: Tensor) -> None:
    mean = torch.zeros_like(weight)
    weight.register_hook(lambda gradient: mean.mul_(0.9).add_(gradient).clone())


def of_a_hook_of_a_parameter(told: Told) -> None:
    model = nn.Linear(2, 2)
    smooth_gradients(model.weight)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in steps(told, model=model, optimizer=optimizer):
        model(torch.ones(1, 2)).sum().backward()
        model.weight.grad = None


class Remembering(nn.Module):
    """Its plain attribute is in the snapshot; so is what it saves itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.queue, self.at, self.norms = nn.Linear(2, 2), torch.zeros(4, 2), 0, [1.0]
        self.sizes = {"rows": 4}

    def forward(self, x: Tensor) -> Tensor:
        self.queue[self.at % 4] = x.detach().mean(0)
        self.at += 1
        self.norms.append(float(x.norm()))
        return self.inner(x)  # type: ignore[no-any-return]


def of_a_module(told: Told) -> None:
    """That a protected object leads to the model saves none of it."""
    model = Remembering()
    average = Average(model)
    for _ in steps(told, model=model, average=average):
        model(torch.randn(3, 2))


class Lookahead(torch.optim.Optimizer):
    """The slow weights and the count are in no state_dict()."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(list(params), {"lr": 0.1})
        self.count, self.weights = 0, list(self.param_groups[0]["params"])
        self.slow = [each.detach().clone() for each in self.weights]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for slow, fast in zip(self.slow, self.weights, strict=True):
            fast.sub_(0.1)
            slow.lerp_(fast, 0.5)


def of_an_optimizer(told: Told) -> None:
    model = nn.Linear(2, 2)
    optimizer = Lookahead(model.parameters())
    for _ in steps(told, model=model, optimizer=optimizer):
        optimizer.step()


def by_parameter(told: Told) -> None:
    model = nn.Linear(2, 2)
    momenta = {each: torch.zeros_like(each) for each in model.parameters()}
    weak = weakref.WeakKeyDictionary({model: [0]})
    for _ in steps(told, model=model):
        momenta[model.weight].add_(1)
        weak[model][0] += 1


class Lazy(UserDict[str, int]):
    """Its own methods are not called: they may draw random numbers, or read a file."""

    def __getitem__(self, key: str) -> int:
        raise AssertionError(f"somebody asked for {key}")


class LazyList(list[int]):
    def __getitem__(self, index: Any) -> Any:
        raise AssertionError(f"somebody asked for {index}")

    def __len__(self) -> int:
        raise AssertionError("somebody asked for the length")


def in_containers_of_the_script(told: Told) -> None:
    lazy, chain, rows = Lazy(), ChainMap({"count": 0}), LazyList([0])
    lazy.data["count"] = 0
    for number in steps(told):
        lazy.data["count"] += 1
        chain.maps[0]["count"] += 1
        rows.append(number)


scale = contextvars.ContextVar("scale", default=1.0)
of_thread = threading.local()
of_thread.count = 0
names = types.SimpleNamespace(count=0)
arguments = argparse.Namespace(lr=0.1)


@functools.cache
def difficulty(number: int) -> float:
    return 1.0 / (1 + number)


def in_objects_of_python(told: Told) -> None:
    log = bytearray()
    for number in steps(told, count=9):
        scale.set(scale.get() * 0.9)
        of_thread.count += 1
        names.count += 1
        arguments.lr *= 0.9
        difficulty(number)
        log.append(number)


def of_the_process(told: Told) -> None:
    before = os.environ.get("OF_A_TEST", "0"), torch.get_default_dtype()
    os.environ["OF_A_TEST"] = "0"
    try:
        for number in steps(told):
            os.environ["OF_A_TEST"] = str(number)
            torch.set_default_dtype(torch.float64 if number > 2 else torch.float32)
    finally:
        os.environ["OF_A_TEST"] = before[0]
        torch.set_default_dtype(before[1])
        del os.environ["OF_A_TEST"]


@pytest.mark.parametrize(
    ("script", "told_of"),
    [
        (of_a_parameter, {"Linear.weight.velocity", "Linear.bias.count"}),
        (of_a_hook, {"Linear:hook.calls"}),
        (of_a_hook_of_a_parameter, {"Linear.weight:hook:mean"}),
        (of_a_module, {"Remembering.queue", "Remembering.norms"}),
        (of_an_optimizer, {"Lookahead.slow", "Lookahead.count"}),
        (by_parameter, {"momenta", "weak"}),
        (in_containers_of_the_script, {"lazy['count']", "chain", "rows"}),
        (
            in_objects_of_python,
            {"scale", "of_thread.count", "names.count", "arguments.lr", "difficulty", "log"},
        ),
        (of_the_process, {"os.environ[OF_A_TEST]", "torch.get_default_dtype()"}),
    ],
)
def test_values_in_other_places_are_told(script, told_of):
    told = Told()
    script(told)
    found = {each.removeprefix("test_hidden_places.") for each in told.names}
    assert found >= told_of, told.names
    assert {each for each in found if each.split(".")[0] in {"Linear", "Remembering", "Lookahead"}} <= told_of


class Saving(Remembering):
    def get_extra_state(self) -> Any:
        return self.norms

    def set_extra_state(self, state: Any) -> None:
        self.norms = state


class Average:
    """Its state has copies."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.weights = list(model.parameters())
        self.shadow = [each.detach().clone() for each in self.weights]

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": [each.clone() for each in self.shadow]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["shadow"]


def what_is_saved(told: Told) -> None:
    model = Saving()
    average, optimizer = Average(model), torch.optim.Adam(model.parameters())
    for _ in steps(told, model=model, average=average, optimizer=optimizer):
        model(torch.randn(3, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for slow, fast in zip(average.shadow, average.weights, strict=True):
            slow.lerp_(fast.detach(), 0.5)


def hooks_without_state(told: Told) -> None:
    model, limits = nn.Linear(2, 2), [1.0, 2.0]
    model.register_forward_hook(lambda module, inputs, output: output * limits[0])
    model.weight.register_hook(lambda gradient: gradient.clamp(-limits[1], limits[1]))
    for _ in steps(told, model=model):
        model(torch.ones(1, 2)).sum().backward()
        model.weight.grad = None


@pytest.mark.parametrize("script", [what_is_saved, hooks_without_state])
def test_what_is_saved_or_stays_is_not_told(script):
    told = Told()
    script(told)
    assert [each for each in told.names if not each.startswith("model.inner")] == []
