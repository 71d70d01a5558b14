"""A library that reads one batch ahead, and enters its epoch again after each fault, as Accelerate and Trainer do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from data_kinds import IN_PROCESS, WORKERS, Make, mask
from torch.utils.data import DataLoader

from deadpool.snapshot.data.position import DataPosition
from deadpool.snapshot.record.record import decode, encode
from deadpool.snapshot.state.rng import capture_rng, restore_rng

STEPS = 12
KINDS = {**IN_PROCESS, **WORKERS}
QUICK = ("random rows, workers", "collator of its own, persistent workers")
CASES = [*IN_PROCESS, *QUICK, *(pytest.param(k, marks=pytest.mark.thorough) for k in WORKERS if k not in QUICK)]
pytestmark = pytest.mark.usefixtures("ended_workers")


class Library:
    def __init__(self, make: Make, *, protected: bool = True) -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        self.loader, self.used, self.position = make(), 0, None
        if protected:
            self.position = DataPosition("data", self.loader, consumed=lambda: self.used, enters_again=True)
        self.versions: dict[int, bytes] = {}
        self.steps: dict[int, Any] = {}

    def _read_ahead(self) -> Iterator[Any]:
        batches = iter(self.loader)
        current = next(batches, None)
        while current is not None:
            following = next(batches, None)
            yield current
            current = following

    def run(self, first: int, last: int) -> None:
        """Enters the epoch of step `first`, and goes on in those after it."""
        number, batches = first, self._read_ahead()
        while number < last:
            if self.position is not None:
                state = [self.position.state_dict(), self.used, capture_rng()]
                self.versions[number] = encode(state, "version")
            batch = next(batches, None)
            if batch is None:
                self.leave()
                batches = self._read_ahead()
                continue
            self.used += 1
            self.steps[number] = [batch.tolist(), torch.rand(1).item(), random.random(), np.random.rand()]
            number += 1

    def leave(self) -> None:
        if self.position is not None:
            self.position.leave()
        self.used = 0

    def load(self, version: bytes) -> None:
        assert self.position is not None
        state, self.used, rng = decode(version, "version")
        self.position.load_state_dict(state)
        restore_rng(rng)


class CountingLibrary(Library):
    """Knows how many batches there are, as Lightning does: it never asks for one more, and is not told of the end."""

    def __init__(self, make: Make, *, protected: bool = True) -> None:
        super().__init__(make, protected=False)
        if protected:
            self.position = DataPosition("data", self.loader, enters_again=True)
            self.position.ahead = lambda: 0

    def _read_ahead(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while self.used < len(self.loader):
            yield next(batches)

    def leave(self) -> None:
        self.used = 0


def test_persistent_workers_of_which_no_more_is_asked_than_there_is():
    make = KINDS["collator of its own, persistent workers"]
    plain = CountingLibrary(make, protected=False)
    plain.run(0, STEPS)
    library = CountingLibrary(make)
    library.run(0, STEPS)
    assert library.steps == plain.steps
    for first, last in ((9, 12), (4, 7)):
        library.load(library.versions[first])
        library.run(first, last)
        assert library.steps == plain.steps, f"steps {first} to {last}"
    other = CountingLibrary(make)
    other.load(library.versions[8])
    other.run(8, STEPS)
    assert {n: other.steps[n] for n in range(8, STEPS)} == {n: plain.steps[n] for n in range(8, STEPS)}


@pytest.mark.parametrize("kind", CASES)
def test_an_epoch_is_entered_again(kind):
    plain = Library(KINDS[kind], protected=False)
    plain.run(0, STEPS)
    library = Library(KINDS[kind])
    library.run(0, STEPS)
    assert library.steps == plain.steps
    for first, last in ((9, 12), (4, 7), (5, 6), (0, 2)):
        library.load(library.versions[first])
        library.run(first, last)
        assert library.steps == plain.steps, f"steps {first} to {last}"
    for first, tried in ((3, 1), (5, 0), (8, 2)):  # that of step 5 was made where the library had returned to
        other = Library(KINDS[kind])
        other.run(0, tried)
        other.load(library.versions[first])
        other.run(first, STEPS)
        assert {n: other.steps[n] for n in range(first, STEPS)} == {n: plain.steps[n] for n in range(first, STEPS)}


@pytest.mark.parametrize("shards", [1, 2])
def test_a_stream_of_hugging_face_goes_on_in_its_epoch(shards):
    """An epoch is of seven batches. The number of the epoch, which decides where a state is used, comes back, too."""
    datasets = pytest.importorskip("datasets")

    def collate(rows: list[dict[str, Any]]) -> torch.Tensor:
        return mask([torch.full((4,), float(row["x"])) for row in rows])

    def make() -> DataLoader[Any]:
        stream = datasets.Dataset.from_dict({"x": list(range(28))}).to_iterable_dataset(num_shards=2)
        return DataLoader(stream.shard(shards, 0), batch_size=4 // shards, collate_fn=collate)

    KINDS["of Hugging Face"] = make
    test_an_epoch_is_entered_again("of Hugging Face")
    first, second = make(), make()
    position, other = DataPosition("data", first), DataPosition("data", second)
    first.dataset.set_epoch(3)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    other.load_state_dict(position.state_dict())
    state = torch.get_rng_state(), np.random.get_state()
    expected = next(batches)
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    assert next(iter(second)).tolist() == expected.tolist() and second.dataset.epoch == 3
