"""Names that hold another tensor after each step are told only if the next step reads the old one first."""

from __future__ import annotations

import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.guards.carried_values import CarriedValues
from deadpool.trainer.guards.guard import Rule
from deadpool.trainer.guards.state_in_variables import StateInVariables


@pytest.fixture(autouse=True)
def nothing_is_compiled() -> None:
    """What other tests of this process have compiled is none of these."""
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters.clear()


class Told:
    """As Findings, without a session."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.found: list[str] = []

    def tell_carried(self, names: list[str]) -> None:
        """What it keeps itself is a value of the script, too, and so is the number in `steps`."""
        self.names += [each for each in names if not each.startswith("told.") and each != "number"]

    def tell_not_compared(self, names: list[str], most: int, most_of_all: int) -> None:
        """Where this is one test of many, their modules are the script's, too."""

    def report(self, rule: Rule, found: str, **_: Any) -> None:
        assert rule is Rule.STATE_IN_VARIABLES
        self.found.append(found)


def steps(told: Told, count: int = 5, **objects: Any) -> Iterator[int]:
    """As job.steps()."""
    model = objects.pop("model", None) or nn.Linear(2, 2)
    state = ProtectedState({"model": model, **objects}, replicas={}, rank=0, node_of=lambda rank: rank)
    values = CarriedValues(told, state)  # type: ignore[arg-type]
    guards = (values, StateInVariables(told, state, values.take_objects))  # type: ignore[arg-type]
    for number in range(count):
        for guard in guards:
            guard.enter_step(number)
        yield number
        for guard in guards:
            guard.leave_step(number)
        for guard in guards:
            guard.at_boundary(number)


class Memory:
    def __init__(self) -> None:
        self.hidden, self.batch, self.list, self.mask = torch.zeros(2), torch.zeros(2), [0.0], torch.ones(1)

    def run(self) -> None:
        self.batch = torch.randn(2)
        self.hidden = (self.hidden + self.batch).detach()
        self.list = [*self.list[-3:], float(self.batch.sum())]


def in_an_attribute(told: Told) -> None:
    memory = Memory()
    for _ in steps(told):
        memory.run()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.h, self.seen = nn.Linear(2, 2), torch.zeros(2), torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x
        self.h = self.cell(self.h + self.seen).detach()
        return self.h


def in_a_protected_module(told: Told) -> None:
    model = Recurrent()
    for _ in steps(told, model=model):
        model(torch.randn(2))


def in_a_closure(told: Told) -> None:
    def make() -> Callable[[], None]:
        hidden, batch = torch.zeros(2), torch.zeros(2)

        def run() -> None:
            nonlocal hidden, batch
            batch = torch.randn(2)
            hidden = hidden + batch

        return run

    run = make()
    for _ in steps(told):
        run()


_hidden = torch.zeros(2)
_batch = torch.zeros(2)


def in_a_global(told: Told) -> None:
    for _ in steps(told):
        _advance()


def _advance() -> None:
    global _hidden, _batch
    _batch = torch.randn(2)
    _hidden = _hidden + _batch


def in_a_generator(told: Told) -> None:
    def make() -> Iterator[torch.Tensor]:
        hidden = torch.zeros(2)
        while True:
            batch = torch.randn(2)
            hidden = hidden + batch
            yield hidden

    outputs = make()
    for _ in steps(told):
        next(outputs)


def in_a_history(told: Told) -> None:
    """Nothing in it changes, but each step adds to it."""
    losses: dict[float, float] = {}
    for number in steps(told):
        losses[0.1 * number] = 1.0


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (in_an_attribute, {"memory.hidden", "memory.list"}),
        (in_a_protected_module, {"Recurrent.h"}),
        (in_a_closure, {"run:hidden"}),
        (in_a_global, {"_hidden"}),
        (in_a_generator, {"outputs:hidden"}),
        (in_a_history, {"losses"}),
    ],
)
def test_what_is_read_before_it_is_stored_is_told_once(script, names):
    told = Told()
    script(told)
    assert set(told.names) - {"test_rebound_values._hidden"} == names and len(told.names) == len(set(told.names))


# --- generators -------------------------------------------------------------------------------------------------------


def noise_in_closures(told: Told) -> None:
    def make() -> Callable[[], None]:
        own, arrays, tensors = random.Random(1), np.random.default_rng(1), torch.Generator().manual_seed(1)

        def run() -> None:
            own.random(), arrays.random(), torch.randn(1, generator=tensors)

        return run

    run = make()
    for _ in steps(told):
        run()


def noise_in_a_generator(told: Told) -> None:
    def make() -> Iterator[torch.Tensor]:
        noise = torch.Generator().manual_seed(1)
        while True:
            yield torch.randn(2, generator=noise)

    batches = make()
    for _ in steps(told):
        next(batches)


@pytest.mark.parametrize(
    ("script", "names"),
    [(noise_in_closures, ["run:arrays", "run:own", "run:tensors"]), (noise_in_a_generator, ["batches:noise"])],
)
def test_generators_that_no_variable_leads_to_are_named(script, names):
    told = Told()
    script(told)
    (found,) = told.found
    assert all(f"{name} (" in found for name in names)


# --- what is exact ----------------------------------------------------------------------------------------------------


def seeded_in_each_step(told: Told) -> None:
    def make() -> Callable[[int], None]:
        own, tensors = random.Random(), torch.Generator()

        def run(number: int) -> None:
            own.seed(number), tensors.manual_seed(number)
            own.random(), torch.randn(1, generator=tensors)

        return run

    run = make()
    for number in steps(told):
        run(number)


def the_same_again_after_each_step(told: Told) -> None:
    class Depth:
        def __init__(self) -> None:
            self.now, self.losses, self.scale = 0, [0.0], torch.ones(1)

    depth, waiting = Depth(), []
    for number in steps(told):
        depth.now += 1
        waiting.append(number)
        waiting.clear()
        depth.losses.append(1.0)
        depth.losses.pop()
        depth.now -= 1


def made_anew_in_each_step(told: Told) -> None:
    """And read only then, in attributes, closures, globals and modules."""

    class Holder:
        def __init__(self) -> None:
            self.batch, self.out = torch.zeros(1), {"loss": torch.zeros(1)}

        def load(self) -> None:
            self.batch = torch.randn(1)

        def compute(self) -> torch.Tensor:
            self.out = {"loss": self.batch.sum()}
            return self.out["loss"]

    def make() -> tuple[Callable[[], None], Callable[[], torch.Tensor]]:
        batch = torch.zeros(1)

        def load() -> None:
            nonlocal batch
            batch = torch.randn(1)

        return load, lambda: batch * 2

    holder, (load, compute) = Holder(), make()
    for _ in steps(told):
        holder.load(), load()
        assert holder.compute() is not compute()


def caches(told: Told) -> None:
    """With a few keys, and by attributes that are made when they do not fit."""

    class Masks:
        def __init__(self) -> None:
            self.by_length: dict[int, torch.Tensor] = {}
            self.warned: set[str] = set()

        def of(self, length: int) -> torch.Tensor:
            if length not in self.by_length:
                self.by_length[length] = torch.ones(length)
            self.warned.add(f"length {length % 2}")
            return self.by_length[length]

    masks = Masks()
    for number in steps(told, count=9):
        masks.of(number % 3)


class Average:
    def __init__(self) -> None:
        self.shadow = torch.zeros(2)

    def update(self) -> None:
        self.shadow = self.shadow * 0.9 + 1

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.shadow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state["shadow"]


def protected(told: Told) -> None:
    """Also what functions reach by a closure."""
    average = Average()

    def make() -> Callable[[], None]:
        inner = average
        return lambda: inner.update()

    update = make()
    for _ in steps(told, average=average):
        update()


EXACT = [seeded_in_each_step, the_same_again_after_each_step, made_anew_in_each_step, caches, protected]


@pytest.mark.parametrize("script", EXACT)
def test_what_is_exact_all_the_same_is_not_told(script):
    told = Told()
    script(told)
    assert (told.names, told.found) == ([], [])


def test_class_is_as_before_when_a_step_has_ended():
    memory, before = Memory(), dict(vars(Memory))
    inside = []
    for _ in steps(Told()):
        memory.run()
        inside.append(dict(vars(Memory)) != before)
    assert True in inside and dict(vars(Memory)) == before


def test_what_a_class_holds_can_be_pickled_while_it_is_watched():
    memory, sent = Memory(), []
    for _ in steps(Told()):
        memory.run()
        sent.append(
            pickle.loads(pickle.dumps({name: vars(Memory)[name] for name in ("hidden",) if name in vars(Memory)}))
        )
    assert {"hidden": None} in sent


def test_attribute_that_is_watched_behaves_as_before():
    class Settings:
        rows: ClassVar[list[int]] = [1]

        def __init__(self) -> None:
            self.own = [1]

    settings, other = Settings(), Settings()
    for number in steps(Told(), count=6):
        settings.rows, settings.own = [number], [number]
        assert (settings.rows, other.rows, Settings.rows) == ([number], [1], [1])
        del settings.rows, other.own
        assert settings.rows == [1] and not hasattr(other, "own")
        settings.rows, other.own = [number], [number]


def test_nothing_is_kept_that_the_script_has_dropped():
    class Holder:
        def __init__(self) -> None:
            self.out: dict[str, torch.Tensor] = {}
            self.batch = torch.zeros(1)

    holder, made = Holder(), []
    for _ in steps(Told(), count=7):
        holder.out, holder.batch = {"logits": torch.zeros(4)}, torch.zeros(4)
        made += [weakref.ref(holder.out["logits"]), weakref.ref(holder.batch)]
    assert [each() is not None for each in made] == [False] * 12 + [True] * 2
