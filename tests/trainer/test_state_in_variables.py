"""State in variables is named; what only looks like it is not. The loops are functions, as scripts write them."""

from __future__ import annotations

import copy
import dis
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel

from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.guards.guard import Rule
from deadpool.trainer.guards.state_in_variables import StateInVariables, carried_names


class Reports:
    """As Findings, without a session."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.carried: list[str] = []

    def report(self, rule: Rule, found: str, *, remedy: str, step: int | None, kind: str) -> None:
        assert rule is Rule.STATE_IN_VARIABLES and found.endswith(".") and remedy.endswith(".") and kind in found
        self.found.append(found)

    def tell_carried(self, names: list[str]) -> None:
        self.carried += names


class Stage:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.reports = Reports()

    def steps(self, count: int = 5, **objects: Any) -> Iterator[int]:
        """As job.steps(), for a script that has passed these objects too."""
        objects = {"model": self.model, "optimizer": self.optimizer, **objects}
        state = ProtectedState(objects, replicas={}, rank=0, node_of=lambda rank: rank)
        guard = StateInVariables(self.reports, state)  # type: ignore[arg-type]
        for number in range(count):
            guard.enter_step(number)
            yield number
            guard.leave_step(number)
            guard.at_boundary(number)

    def train(self) -> float:
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(2, 4)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def scheduler(stage: Stage) -> None:
    schedule = StepLR(stage.optimizer, 2)
    for _ in stage.steps():
        stage.train()
        schedule.step()


def averaged(stage: Stage) -> None:
    average = AveragedModel(stage.model)
    for _ in stage.steps():
        stage.train()
        average.update_parameters(stage.model)


def copied(stage: Stage) -> None:
    ema = copy.deepcopy(stage.model)
    for _ in stage.steps():
        stage.train()
        for mine, theirs in zip(ema.parameters(), stage.model.parameters(), strict=True):
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)


def drawn_by_torch(stage: Stage) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in stage.steps():
        torch.rand(2, generator=generator)


def drawn_by_numpy(stage: Stage) -> None:
    generator = np.random.default_rng(3)
    for _ in stage.steps():
        generator.random()


def drawn_by_a_random_state(stage: Stage) -> None:
    generator = np.random.RandomState(3)
    for _ in stage.steps():
        generator.rand(1000)


def drawn_by_random(stage: Stage) -> None:
    generator = random.Random(3)
    for _ in stage.steps():
        [generator.random() for _ in range(1000)]


def second_optimizer(stage: Stage) -> None:
    centres = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(centres.parameters())
    for _ in stage.steps():
        centres(torch.randn(2, 2)).sum().backward()
        optimizer.step()


def scaler(stage: Stage) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in stage.steps():
        stage.optimizer.zero_grad()
        scaler.scale(stage.model(torch.randn(2, 4)).sum()).backward()
        scaler.step(stage.optimizer)
        scaler.update()


class Trainer:
    """A script that keeps its things in an object."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.schedulers = stage, [StepLR(stage.optimizer, 2)]

    def fit(self) -> None:
        for _ in self.stage.steps():
            self.stage.train()
            self.schedulers[0].step()


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (scheduler, "schedule (StepLR)"),
        (averaged, "average (AveragedModel)"),
        (copied, "ema (Linear)"),
        (drawn_by_torch, "generator (Generator)"),
        (drawn_by_numpy, "generator (Generator)"),
        (drawn_by_a_random_state, "generator (RandomState)"),
        (drawn_by_random, "generator (Random)"),
        (second_optimizer, "optimizer (AdamW)"),
        (scaler, "scaler (GradScaler)"),
        (lambda stage: Trainer(stage).fit(), "self.schedulers[0] (StepLR)"),
    ],
)
def test_state_is_named_once(stage, script, name):
    script(stage)
    assert sum(name in found for found in stage.reports.found) == 1, stage.reports.found


class Everything:
    """An object of the script that keeps the state of others."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is loaded here."""


_rng = np.random.default_rng(1)


class OfGlobal(Everything):
    def state_dict(self) -> dict[str, Any]:
        return _rng.bit_generator.state


def passed(stage: Stage) -> None:
    warm, main = LambdaLR(stage.optimizer, lambda epoch: 1.0), StepLR(stage.optimizer, 2)
    schedule = SequentialLR(stage.optimizer, [warm, main], [2])
    average, generator = AveragedModel(stage.model), torch.Generator()
    for _ in stage.steps(schedule=schedule, average=average, rng=Everything(generator=generator), other=OfGlobal()):
        stage.train()
        torch.rand(2, generator=generator)
        _rng.random()
        schedule.step()
        average.update_parameters(stage.model)


def seeded_in_each_step(stage: Stage) -> None:
    generator, numbers, state = torch.Generator(), random.Random(), np.random.RandomState()
    for number in stage.steps():
        generator.manual_seed(number), numbers.seed(number), state.seed(number)
        torch.rand(2, generator=generator), numbers.random(), state.rand()
        np.random.default_rng(number).random()


def unchanged(stage: Stage) -> None:
    reference, wrapped = copy.deepcopy(stage.model).eval(), torch.compile(stage.model, backend="eager")
    unused = random.Random(1)
    for _ in stage.steps():
        stage.train()
        best = copy.deepcopy(stage.model)
        best(torch.randn(1, 4)), reference(torch.randn(1, 4)), wrapped(torch.randn(1, 4))
        random.random(), np.random.rand(), torch.rand(1)
    assert unused


@pytest.mark.parametrize("script", [passed, seeded_in_each_step, unchanged])
def test_what_is_exact_is_not_named(stage, script):
    script(stage)
    assert stage.reports.found == []


def test_generator_of_a_loader_is_left_to_the_loader(stage):
    generator = torch.Generator()
    loader = torch.utils.data.DataLoader(list(range(4)), generator=generator)
    for _ in stage.steps():
        list(loader)
    assert stage.reports.found == []


# --- plain values -----------------------------------------------------------------------------------------------------


def test_plain_values_that_a_later_step_reads_are_told_in_milder_words(stage):
    best, patience, epoch, last = 1e9, 0, 0, None
    limit = 3
    for number in stage.steps():
        loss = stage.train()
        if number % 2 == 0:
            epoch += 1
        patience = 0 if loss < best else patience + 1
        best = min(best, loss)
        mean = loss / limit
        last = mean
    assert stage.reports.carried == ["best", "epoch", "patience"] and stage.reports.found == [] and last


def test_an_epoch_of_an_outer_loop_is_carried(stage):
    steps = stage.steps(6)
    for epoch in range(2):
        for _ in range(3):
            next(steps)
            torch.manual_seed(epoch)
    assert stage.reports.carried == ["epoch"]


def test_what_is_derived_from_the_step_is_not_told(stage):
    for number in stage.steps():
        epoch, index = divmod(number, 2)
        with torch.no_grad():
            total = 0.0
            for each in range(3):
                total += each + epoch + index
        if total > 100:
            continue
    assert stage.reports.carried == []


def wait(code_of: Callable[..., Any]) -> frozenset[str]:
    """The names of a generator function that waits at its first yield."""
    waiting = code_of()
    next(waiting)
    return carried_names(waiting.gi_code, waiting.gi_frame.f_lasti)


def test_what_is_stored_before_it_is_read_on_every_way_is_not_carried():
    def loop() -> Iterator[None]:
        seen: list[int] = []
        while True:
            yield
            value = 1
            if seen:
                value = 2
            for other in range(value):
                last = other
            seen.append(last)
            del value

    assert wait(loop) == frozenset()


def test_what_is_stored_on_one_way_only_is_carried():
    def loop() -> Iterator[None]:
        value, count = 0, 0
        while True:
            yield
            if count > 3:
                value = 1
            count = value + 2

    assert wait(loop) == {"value", "count"}


def test_a_loop_is_followed_however_long_it_is():
    """The jump back of a long loop leads to a prefix of the instruction at its head."""
    lines = "\n".join(f"        other = len('{each}')" for each in range(200))
    source = f"def loop(items):\n    best = 0\n    for item in items:\n        best = max(best, item)\n{lines}\n"
    variables: dict[str, Any] = {}
    exec(source, variables)
    heads = [each.offset for each in dis.get_instructions(variables["loop"]) if each.opname == "FOR_ITER"]
    assert carried_names(variables["loop"].__code__, heads[0]) == {"best"}
