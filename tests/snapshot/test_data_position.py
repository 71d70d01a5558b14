"""torch's DataLoader of any kind comes back to its place: in the process that has drawn, and in one that has not.

Each loop also draws numbers of its own, as dropout does, and is compared with the same loop over a plain loader.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from data_kinds import IN_PROCESS, SPAWNED, WORKERS, Make
from torch.utils.data import DataLoader, IterableDataset

from deadpool.errors import ConfigError, NotInPlace
from deadpool.snapshot.data import kept_batches
from deadpool.snapshot.data.position import DataPosition
from deadpool.snapshot.record.record import decode, encode
from deadpool.snapshot.state.rng import capture_rng, restore_rng

STEPS = 12
KINDS = {**IN_PROCESS, **WORKERS, **SPAWNED}
QUICK = ("random rows, workers",)
CASES = [
    *((kind, style) for kind in IN_PROCESS for style in ("held", "cycle")),
    *((kind, "cycle") for kind in QUICK),
    *(pytest.param(kind, "held", marks=pytest.mark.thorough) for kind in WORKERS),
    *(pytest.param(kind, "cycle", marks=pytest.mark.thorough) for kind in {**WORKERS, **SPAWNED} if kind not in QUICK),
]
RETURNS = {
    True: ((10, 12), (9, 11), (5, 8), (4, 6), (3, 6), (0, 1), (0, 7), (6, 12)),
    False: ((10, 12), (4, 6), (6, 9)),
}
"""From which step to which one, for kinds without worker processes, and with."""
NEWCOMERS = {True: ((0, 0), (3, 2), (4, 0), (5, 1), (6, 0), (10, 0), (11, 6)), False: ((4, 1), (6, 0))}
"""The step that another process begins with, and how many it has tried out before."""
pytestmark = pytest.mark.usefixtures("ended_workers")


def seed() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)


class Held:
    """A script that holds the iterator, and makes the next one when it ends."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._held = iter(loader)

    def next(self) -> Any:
        try:
            return next(self._held)
        except StopIteration:
            self._held = iter(self._loader)
            return next(self._held)


class Cycle:
    """A script with a generator that goes through the loader again and again."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._batches = self._cycle(loader)

    def _cycle(self, loader: DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from loader

    def next(self) -> Any:
        return next(self._batches)


STYLES = {"held": Held, "cycle": Cycle}


class Run:
    """A training: its steps can be redone from any boundary."""

    def __init__(self, make: Make, style: str, *, protected: bool = True) -> None:
        seed()
        self.loader = make()
        self._position = DataPosition("data", self.loader) if protected else None
        self._script = STYLES[style](self.loader)
        torch.rand(2)
        self.versions: dict[int, bytes] = {}
        self.steps: dict[int, Any] = {}
        self.places: dict[int, dict[str, Any]] = {}  # what an audit compares

    def go(self, first: int, last: int) -> None:
        for number in range(first, last):
            if self._position is not None:
                state = self._position.state_dict()
                self.versions[number] = encode([state, capture_rng()], "version")
                self.places[number] = {key: each for key, each in state.items() if key != "mark"}
            batch = self._script.next()
            self.steps[number] = [batch.tolist(), torch.rand(1).item(), random.random(), np.random.rand()]

    def load(self, version: bytes) -> None:
        assert self._position is not None
        state, rng = decode(version, "version")
        self._position.load_state_dict(state)
        restore_rng(rng)


def plain(make: Make, style: str) -> dict[int, Any]:
    run = Run(make, style, protected=False)
    run.go(0, STEPS)
    return run.steps


def differing(steps: dict[int, Any], reference: dict[int, Any]) -> list[int]:
    return [number for number in sorted(steps) if steps[number] != reference[number]]


@pytest.mark.parametrize(("kind", "style"), CASES)
def test_a_process_that_has_drawn_returns_to_each_boundary(kind, style):
    make = KINDS[kind]
    reference = plain(make, style)
    run = Run(make, style)
    run.go(0, STEPS)
    places = dict(run.places)
    assert differing(run.steps, reference) == []
    for first, last in RETURNS[kind in IN_PROCESS]:
        run.load(run.versions[first])
        run.go(first, last)
        assert differing(run.steps, reference) == [], f"steps {first} to {last}"
        assert run.places == places


@pytest.mark.parametrize(("kind", "style"), CASES)
def test_another_process_goes_on_at_each_boundary(kind, style):
    """It is one that has done nothing, or one that has tried out steps."""
    make = KINDS[kind]
    reference = plain(make, style)
    run = Run(make, style)
    run.go(0, STEPS)
    for first, tried in NEWCOMERS[kind in IN_PROCESS]:
        other = Run(make, style)
        other.go(0, tried)
        other.steps.clear()
        other.places.clear()
        other.load(run.versions[first])
        other.go(first, STEPS)
        assert differing(other.steps, reference) == [], f"from step {first}, {tried} tried"
        assert len(other.steps) == STEPS - first
        assert other.places == {number: run.places[number] for number in range(first, STEPS)}


@pytest.mark.parametrize("kind", ["random rows", "stream, permuted", "random rows, workers"])
def test_versions_of_a_newcomer_serve_the_next_one(kind):
    reference = plain(KINDS[kind], "cycle")
    run = Run(KINDS[kind], "cycle")
    run.go(0, 7)
    second = Run(KINDS[kind], "cycle")
    second.load(run.versions[6])
    second.go(6, 9)
    third = Run(KINDS[kind], "cycle")
    third.load(second.versions[8])
    third.go(8, STEPS)
    assert differing(third.steps, reference) == []


@pytest.mark.parametrize("kind", ["random rows", "stream, permuted", "random rows, workers"])
def test_batches_that_are_not_kept_are_drawn_again(kind, monkeypatch):
    monkeypatch.setattr(kept_batches, "MOST_BATCHES", 2)
    reference = plain(KINDS[kind], "held")
    run = Run(KINDS[kind], "held")
    run.go(0, 5)
    run.load(run.versions[1])
    run.go(1, STEPS)
    assert differing(run.steps, reference) == []


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("kind", ["shuffled, random collator", "random rows, workers", "stream, permuted"])
def test_a_batch_that_a_step_wrote_into_is_drawn_again(kind, first):
    reference = plain(KINDS[kind], "held")
    run = Run(KINDS[kind], "held")
    run.go(0, 3)
    batch = run._script.next()
    batch.zero_()
    run.load(run.versions[first])
    run.go(first, STEPS)
    assert differing(run.steps, reference) == []


def test_workers_live_on_where_batches_are_given_again():
    run = Run(WORKERS["random rows, workers"], "held")
    run.go(0, 3)
    workers = [each.pid for each in run._script._held._workers]
    run.load(run.versions[1])
    run.go(1, 4)
    assert [each.pid for each in run._script._held._workers] == workers


class DrawsAlways(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.rand(3)


def test_a_stream_that_draws_from_the_process_for_each_batch_is_refused():
    loader = DataLoader(DrawsAlways(), batch_size=2)
    position = DataPosition("data", loader)
    batches = iter(loader)
    with pytest.raises(ConfigError, match=r"the dataset \(DrawsAlways\) draws from the random generators"):
        for _ in range(30):
            next(batches)
            torch.rand(1)
    assert position.place[0] == 1


def test_an_iterator_that_was_begun_in_the_step_and_not_at_once_is_not_begun_again():
    loader = IN_PROCESS["random rows"]()
    position = DataPosition("data", loader)
    before = position.state_dict()
    batches = iter(loader)
    torch.rand(1)
    next(batches)
    with pytest.raises(NotInPlace, match="only a fresh process"):
        position.load_state_dict(before)


def test_batches_out_of_order_are_refused():
    loader = DataLoader(range(8), num_workers=2, in_order=False)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="in_order=False"):
        DataPosition("data", loader)
