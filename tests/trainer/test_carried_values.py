"""Values that steps change outside of the variables of their loop are told; what stays, or is protected, is not."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.guards import script_walk
from deadpool.trainer.guards.carried_values import CarriedValues


class Told:
    """As Findings, without a session."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.not_compared: list[str] = []

    def tell_not_compared(self, names: list[str], most: int, most_of_all: int) -> None:
        assert not self.not_compared, "it is told once"
        self.not_compared += names

    def tell_carried(self, names: list[str]) -> None:
        """What it keeps itself is a value of the script, too."""
        self.names += [each for each in names if not each.startswith("told.")]


def steps(told: Told, count: int = 5, **objects: Any) -> Iterator[int]:
    """As job.steps()."""
    model = objects.pop("model", None) or nn.Linear(2, 2)
    state = ProtectedState({"model": model, **objects}, replicas={}, rank=0, node_of=lambda rank: rank)
    guard = CarriedValues(told, state)  # type: ignore[arg-type]
    for number in range(count):
        guard.enter_step(number)
        yield number
        guard.leave_step(number)
        guard.at_boundary(number)


@dataclasses.dataclass
class Statistics:
    count: int = 0
    weights: tuple[float, ...] = (1.0, 1.0)


def in_a_closure(told: Told) -> None:
    def make() -> Callable[[], None]:
        statistics, history = Statistics(), []

        def run() -> None:
            statistics.count += 1
            history.append(1.0)

        return run

    run = make()
    for _ in steps(told):
        run()


def by_nonlocal(told: Told) -> None:
    def make() -> Callable[[], None]:
        count = 0

        def bump() -> None:
            nonlocal count
            count += 1

        return bump

    bump = make()
    for _ in steps(told):
        bump()


def by_nonlocal_of_the_loop(told: Told) -> None:
    count = 0

    def bump() -> None:
        nonlocal count
        count += 1

    for _ in steps(told):
        bump()
    assert count


_calls = 0


def in_a_global(told: Told) -> None:
    def bump() -> None:
        global _calls
        _calls += 1

    for _ in steps(told):
        bump()


class Clipped:
    norm = 1.0


def in_a_class(told: Told) -> None:
    for _ in steps(told):
        Clipped.norm *= 0.9


def in_a_default(told: Told) -> None:
    def remember(value: int, seen: list[int] = []) -> None:  # noqa: B006
        seen.append(value)

    for number in steps(told):
        remember(number)


def in_containers(told: Told) -> None:
    momenta, seen, counts, long = {"weight": torch.zeros(2)}, deque([0], maxlen=1), Counter(), list(range(1000))
    for number in steps(told):
        momenta["weight"] = 0.9 * momenta["weight"] + 1
        seen.append(number), counts.update(["a"]), long.append(number)


def in_arrays(told: Told) -> None:
    class Memory:
        def __init__(self) -> None:
            self.rows, self.mean = np.zeros((4, 2)), torch.zeros(2)

    memory = Memory()
    for number in steps(told):
        memory.rows[number % 4] += 1
        memory.mean.add_(1)


def of_iterators(told: Told) -> None:
    ticks, rates, numbered = itertools.count(), itertools.cycle([1, 2, 3, 4, 5, 6, 7]), enumerate("abcdefgh")
    partial = functools.partial(next, iter(range(9)))
    for _ in steps(told):
        next(ticks), next(rates), next(numbered), partial()


def of_a_generator(told: Told) -> None:
    def make() -> Iterator[int]:
        drawn = 0
        while True:
            drawn += 2
            yield drawn

    numbers = make()
    for _ in steps(told):
        next(numbers)


def with_slots(told: Told) -> None:
    class Meter:
        __slots__ = ("sum",)

        def __init__(self) -> None:
            self.sum = 0.0

        def add(self) -> None:
            self.sum += 1.5

    add = Meter().add
    for _ in steps(told):
        add()


class Average:
    """Its state has the tensors, and not the count of updates that decides when they move."""

    def __init__(self) -> None:
        self.shadow, self.updates, self.saved = torch.zeros(2), 100, 200

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow, "saved": self.saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["shadow"]


def forgotten_by_a_state_dict(told: Told) -> None:
    average = Average()
    for _ in steps(told, average=average):
        average.updates += 1
        average.saved += 1


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (in_a_closure, {"run:history", "run:statistics.count"}),
        (by_nonlocal, {"bump:count"}),
        (by_nonlocal_of_the_loop, {"count", "bump:count"}),
        (in_a_global, {"_calls"}),
        (in_a_class, {"Clipped.norm"}),
        (in_a_default, {"remember:default"}),
        (in_containers, {"momenta", "seen", "counts['a']", "long"}),
        (in_arrays, {"memory.rows", "memory.mean"}),
        (of_iterators, {"ticks", "rates", "numbered", "partial:args"}),
        (of_a_generator, {"numbers:drawn"}),
        (with_slots, {"add.sum"}),
        (forgotten_by_a_state_dict, {"average.updates"}),
    ],
)
def test_values_that_steps_change_are_told_once(script, names):
    told = Told()
    script(told)
    assert set(told.names) >= names and len(told.names) == len(set(told.names))
    assert {each.split("[")[0].split("~")[0] for each in told.names} <= {each.split("[")[0] for each in names}


class Trainer:
    """A script that keeps its things, and what a step computes, in an object."""

    def __init__(self) -> None:
        self.model, self.limits, self.lists = nn.Linear(2, 2), {"rows": 4}, [[1, 2], [3]]
        self.batch, self.out = torch.zeros(1), {}

    def run(self, number: int) -> None:
        self.batch = torch.randn(4, 2)
        self.out = {"loss": self.model(self.batch).sum()}
        self.model.weight.grad = None


def own_objects(told: Told) -> None:
    trainer, made = Trainer(), []
    for number in steps(told, model=trainer.model):
        trainer.run(number)
        loss, epoch = trainer.out["loss"].item(), number // 2
        values = [loss, epoch]
        with torch.no_grad():
            trainer.model.weight.mul_(0.9)
    assert values and not made


class Stream:
    def __init__(self) -> None:
        self.position, self.inner = 0, {"drawn": []}

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "inner": self.inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.inner = state["position"], state["inner"]


def protected(told: Told) -> None:
    stream = Stream()
    inner = stream.inner
    for number in steps(told, stream=stream):
        stream.position += 1
        inner["drawn"].append(number)


def shared_memory(told: Told) -> None:
    """Views of what is protected, and gradients."""
    model = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = model.state_dict()
    model(torch.randn(4, 2)).square().sum().backward()
    optimizer.step()
    views, gradients = [each.data for each in model.parameters()], [each.grad for each in model.parameters()]
    momenta = [optimizer.state[each]["momentum_buffer"].view(-1) for each in model.parameters()]
    for _ in steps(told, model=model, optimizer=optimizer):
        model(torch.randn(4, 2)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert state and views and gradients and momenta


def made_in_the_first_step(told: Told) -> None:
    cache: dict[str, int] = {}
    for _ in steps(told):
        cache.setdefault("a", 1)


@pytest.mark.parametrize("script", [own_objects, protected, shared_memory, made_in_the_first_step])
def test_what_stays_or_is_protected_is_not_told(script):
    told = Told()
    script(told)
    assert told.names == []


def too_much(told: Told) -> None:
    rows = [[0] * 60 for _ in range(60)]
    history: list[float] = []
    for _ in steps(told):
        rows[0][0] += 1
        rows[59][59] += 1
        history.append(1.0)


def test_of_data_only_the_beginning_is_compared_and_that_is_told():
    told = Told()
    too_much(told)
    assert {each.split("[")[0] for each in told.names} == {"rows", "history"}
    assert "rows" in told.not_compared and "history" not in told.not_compared


def test_where_all_variables_together_are_too_much_those_of_the_loop_come_first(monkeypatch):
    monkeypatch.setattr(script_walk, "MOST_PLACES", 100)
    told = Told()
    in_a_closure(told)
    assert "run:statistics.count" in told.names and told.not_compared
