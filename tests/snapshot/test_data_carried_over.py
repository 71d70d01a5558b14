"""What loaders carry from one epoch into the next, or share: another process has it too, or it is refused by name.

The early audit of a job is in its first epoch, so it can find none of this.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from data_kinds import ROWS, Rows
from test_data_position import Run, differing, plain
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Sampler, Subset

from deadpool.errors import ConfigError
from deadpool.snapshot.data import held_sequences
from deadpool.snapshot.data.position import DataPosition
from deadpool.snapshot.state.objects import sort_objects

LAST = 12
"""In the third epoch, of five batches each."""


class ShufflesInPlace(Sampler[int]):
    def __init__(self, order: Any, shuffle: Any) -> None:
        self.order, self._shuffle = order, shuffle

    def __iter__(self) -> Iterator[int]:
        self._shuffle(self.order)
        return iter([int(each) for each in self.order])

    def __len__(self) -> int:
        return len(self.order)


class Files(IterableDataset[torch.Tensor]):
    def __init__(self) -> None:
        self.files = [f"part {index}" for index in range(ROWS)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        random.shuffle(self.files)
        for each in self.files:
            yield torch.full((3,), float(each.split()[1]))


class Rotates(IterableDataset[torch.Tensor]):
    def __init__(self) -> None:
        self.queue = deque(range(ROWS))

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(ROWS):
            self.queue.rotate(-7)
            yield torch.full((3,), float(self.queue[0]))
        self.queue.rotate(3)


class ReadsOn(IterableDataset[torch.Tensor]):
    """Each epoch is the next lines of a file that stays open."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.file.write("\n".join(map(str, range(100))))
        self.file.seek(0)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(ROWS):
            yield torch.full((3,), float(self.file.readline()))


class OfModule(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + NOISE.random()


NOISE = np.random.default_rng(1)


class Deep:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def random(self) -> float:
        value: float = self.inner.random()
        return value


class OneBuffer(Rows):
    """Every row is in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = np.zeros((3,), dtype=np.float32)

    def __getitem__(self, index: int) -> torch.Tensor:
        self._buffer[:] = index
        return torch.from_numpy(self._buffer)


def _of_module() -> DataLoader[Any]:
    NOISE.bit_generator.state = np.random.default_rng(1).bit_generator.state
    return DataLoader(OfModule(), batch_size=4)


def _closure() -> DataLoader[Any]:
    rng = np.random.default_rng(0)
    return DataLoader(Rows(), batch_size=4, collate_fn=lambda rows: torch.stack(rows) + rng.random())


def _deep() -> DataLoader[Any]:
    rows = Rows(own=Deep(Deep(np.random.default_rng(0))))
    parts = [Subset(rows, list(range(9))), Subset(rows, list(range(9, ROWS)))]
    return DataLoader(ConcatDataset(parts), batch_size=4)


KINDS = {
    "a list that is shuffled in place": lambda: DataLoader(
        Rows(), 4, sampler=ShufflesInPlace(list(range(ROWS)), random.shuffle)
    ),
    "an array that is shuffled in place": lambda: DataLoader(
        Rows(), 4, sampler=ShufflesInPlace(np.arange(ROWS), np.random.shuffle)
    ),
    "files that are shuffled in place": lambda: DataLoader(Files(), 4),
    "a queue that turns": lambda: DataLoader(Rotates(), 4),
    "an open file": lambda: DataLoader(ReadsOn(), 4),
    "a generator of the module": _of_module,
    "a generator in a closure": _closure,
    "a generator that lies deep": _deep,
    "one buffer for all batches": lambda: DataLoader(OneBuffer(), batch_size=None, sampler=range(ROWS)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_another_process_and_one_that_has_drawn_go_on(kind):
    reference = plain(KINDS[kind], "held")
    run = Run(KINDS[kind], "held")
    run.go(0, LAST)
    assert differing(run.steps, reference) == []
    for first, tried in ((3, 1), (5, 0), (11, 2)):
        before = {number: run.versions[number] for number in range(LAST)}
        other = Run(KINDS[kind], "held")
        other.go(0, tried)
        other.steps.clear()
        other.load(before[first])
        other.go(first, LAST)
        assert differing(other.steps, reference) == [], f"from step {first}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_has_drawn_returns(kind):
    reference = plain(KINDS[kind], "held")
    run = Run(KINDS[kind], "held")
    run.go(0, LAST)
    for first in (9, 4):
        run.load(run.versions[first])
        run.go(first, LAST)
        assert differing(run.steps, reference) == [], f"from step {first}"


def test_a_long_list_that_is_changed_in_place_is_refused(monkeypatch):
    monkeypatch.setattr(held_sequences, "MOST_ELEMENTS", 10)
    run = Run(KINDS["files that are shuffled in place"], "held")
    with pytest.raises(ConfigError, match="changed in place from epoch to epoch"):
        run.go(0, LAST)


class GoesOn(IterableDataset[torch.Tensor]):
    def __init__(self, source: Iterator[int] | None) -> None:
        self.source = source

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.source = self.source or iter(range(1000))
        for each in itertools.islice(self.source, ROWS):
            yield torch.full((3,), float(each))


def test_an_iterator_that_epochs_go_on_with_is_refused():
    with pytest.raises(ConfigError, match=r"dataset\.source is an iterator \(range_iterator\)"):
        DataPosition("data", DataLoader(GoesOn(iter(range(1000))), batch_size=4))
    run = Run(lambda: DataLoader(GoesOn(None), batch_size=4), "held")
    with pytest.raises(ConfigError, match=r"dataset\.source is an iterator"):
        run.go(0, LAST)
    assert list(run.steps) == list(range(5))


def test_an_older_iterator_of_the_loader_is_refused():
    loader: DataLoader[Any] = DataLoader(Rows(), batch_size=4)
    DataPosition("data", loader)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(ConfigError, match="only the newest has a position"):
        next(first)
    assert len(list(second)) == 4


class Broken(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise ValueError("this row is broken")
        return super().__getitem__(index)


def test_a_batch_behind_an_error_is_refused():
    loader: DataLoader[Any] = DataLoader(Broken(), batch_size=4)
    DataPosition("data", loader)
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="broken"):
        next(batches)
    with pytest.raises(ConfigError, match="an error came out of the loader"):
        next(batches)
    assert len(next(iter(loader))) == 4


class DrawsEach(Sampler[int]):
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.randint(ROWS, (1,), generator=self._generator))


def test_an_order_that_shares_its_generator_with_what_steps_draw_is_refused():
    shared = torch.Generator()
    loader: DataLoader[Any] = DataLoader(Rows(), batch_size=4, sampler=DrawsEach(shared))
    DataPosition("data", loader)
    batches = iter(loader)
    next(batches)
    next(batches)
    torch.rand(1, generator=shared)
    with pytest.raises(ConfigError, match=r"its order \(BatchSampler\) draws from a generator from which others draw"):
        next(batches)
    shuffled: DataLoader[Any] = DataLoader(Rows(), batch_size=4, shuffle=True, generator=shared)
    DataPosition("data", shuffled)
    batches = iter(shuffled)
    torch.rand(1, generator=shared)
    with pytest.raises(ConfigError, match="from which others draw in between"):
        next(batches)


class Noise:
    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["state"])


def test_a_generator_that_others_hold_too_is_refused():
    model, shared = torch.nn.Linear(2, 2), torch.Generator()
    first: DataLoader[Any] = DataLoader(Rows(), shuffle=True, generator=shared)
    second: DataLoader[Any] = DataLoader(Rows(), shuffle=True, generator=shared)
    with pytest.raises(ConfigError, match="second: it holds a generator of random numbers that first holds"):
        sort_objects({"model": model, "first": first, "second": second})
    with pytest.raises(ConfigError, match="that noise holds"):
        sort_objects({"model": model, "data": first, "noise": Noise(shared)})


class OddlyKept(Rows):
    """Attributes of which nothing can be told, or that a comparison could trip over."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = torch.zeros(4).to_sparse()
        self.quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)
        self.parts: list[Any] = [np.array([1, 2]), np.array([3, 4])]

    def __getitem__(self, index: int) -> Any:
        self.parts[:] = [1, 2]
        return super().__getitem__(index)


def test_attributes_of_any_kind_end_no_job():
    loader = DataLoader(OddlyKept(), batch_size=4)
    position = DataPosition("data", loader)
    for _ in range(2):
        assert len(list(loader)) == len(loader)
        position.state_dict()
