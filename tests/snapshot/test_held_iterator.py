"""A script holds the iterator of a StatefulDataLoader: after a restore that very object goes on where it should."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler, Sampler
from waiting import LIMIT_S

from deadpool.errors import ConfigError
from deadpool.snapshot.state.state import ProtectedState

StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

ITEMS = 20
BATCH = 3
PER_EPOCH = 7


class Stream(IterableDataset):
    """Every worker its own part of the numbers."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(info.id, ITEMS, info.num_workers) if info else range(ITEMS))


class StatefulStream(IterableDataset):
    """Knows where it is, so that nothing has to be read again."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        first, stride = (info.id, info.num_workers) if info else (0, 1)
        while self.position < ITEMS:
            self.position += 1
            yield 100 * self.position + first * stride
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Noisy(torch.utils.data.Dataset):
    """Draws from every generator of the process it runs in."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> float:
        return index + random.random() + float(torch.rand(())) + float(np.random.rand())


def distributed(sampler_seed: int = 3) -> Sampler:
    return DistributedSampler(range(2 * ITEMS), num_replicas=2, rank=1, seed=sampler_seed)


LOADERS: dict[str, Callable[[], StatefulDataLoader]] = {
    "in order": lambda: StatefulDataLoader(range(ITEMS), BATCH),
    "shuffled": lambda: StatefulDataLoader(range(ITEMS), BATCH, shuffle=True),
    "shuffled by the user's generator": lambda: StatefulDataLoader(
        range(ITEMS), BATCH, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "distributed": lambda: StatefulDataLoader(range(2 * ITEMS), BATCH, sampler=distributed()),
    "random dataset": lambda: StatefulDataLoader(Noisy(), BATCH, shuffle=True),
    "stream": lambda: StatefulDataLoader(Stream(), BATCH),
    "stateful stream": lambda: StatefulDataLoader(StatefulStream(), BATCH),
    "workers": lambda: StatefulDataLoader(range(ITEMS), BATCH, shuffle=True, num_workers=2),
    "workers, user's generator": lambda: StatefulDataLoader(
        range(ITEMS), BATCH, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(5)
    ),
    "workers, stream": lambda: StatefulDataLoader(Stream(), BATCH, num_workers=2),
    "workers, stateful stream": lambda: StatefulDataLoader(StatefulStream(), BATCH, num_workers=2),
    "workers, state not every step": lambda: StatefulDataLoader(
        range(ITEMS), BATCH, shuffle=True, num_workers=2, snapshot_every_n_steps=3
    ),
    "persistent workers": lambda: StatefulDataLoader(
        range(ITEMS), BATCH, shuffle=True, num_workers=2, persistent_workers=True
    ),
}


SAMPLE = {"workers", "workers, stateful stream", "persistent workers"}
"""Kinds with workers that every run of the check tries: their processes take most of the time of this file."""
KINDS = [
    pytest.param(kind, marks=() if kind in SAMPLE or "workers" not in kind else pytest.mark.thorough)
    for kind in LOADERS
]


class Script:
    """Holds one iterator, as a training script does, and makes a new one for each epoch."""

    def __init__(self, kind: str, seed: int = 0, *, begun: bool = True) -> None:
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.loader = LOADERS[kind]()
        self.held = iter(self.loader) if begun else None
        self.state = ProtectedState({"data": self.loader}, replicas={}, rank=0, node_of=lambda rank: rank)

    def take(self, count: int) -> list[Any]:
        return [torch.as_tensor(self._next()).tolist() for _ in range(count)]

    def _next(self) -> Any:
        if self.held is None:
            self.held = iter(self.loader)
        try:
            return next(self.held)
        except StopIteration:
            if hasattr(self.loader.sampler, "set_epoch"):
                self.loader.sampler.set_epoch(self.loader.sampler.epoch + 1)
            self.held = iter(self.loader)
            return next(self.held)


@pytest.mark.parametrize("kind", LOADERS)
def test_rolled_back_in_mid_epoch(kind):
    script = Script(kind)
    script.take(2)
    record = script.state.record()
    expected = script.take(2 * PER_EPOCH)  # over the ends of two epochs
    script.state.restore_record(record)
    assert script.take(2 * PER_EPOCH) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_rolled_back_by_one_batch_with_the_iterator_in_hand(kind):
    script = Script(kind)
    script.take(3)
    record, held = script.state.record(), script.held
    expected = script.take(1)
    assert script.held is held
    script.state.restore_record(record)
    assert script.take(1) == expected
    assert script.held is held


@pytest.mark.parametrize("taken", [PER_EPOCH, PER_EPOCH + 1], ids=["last batch", "first of the next epoch"])
@pytest.mark.parametrize("kind", KINDS)
def test_rolled_back_around_the_end_of_an_epoch(kind, taken):
    script = Script(kind)
    script.take(taken)
    record = script.state.record()
    expected = script.take(PER_EPOCH)
    script.state.restore_record(record)
    assert script.take(PER_EPOCH) == expected


@pytest.mark.parametrize("rehearsed", [0, 1], ids=["no dry step", "one dry step"])
@pytest.mark.parametrize("kind", KINDS)
def test_newcomer_takes_over_in_the_second_epoch(kind, rehearsed):
    script = Script(kind)
    script.take(PER_EPOCH + 2)
    record = script.state.record()
    expected = script.take(2 * PER_EPOCH)
    newcomer = Script(kind, seed=1)
    newcomer.take(rehearsed)
    newcomer.state.restore_record(record)
    assert newcomer.take(2 * PER_EPOCH) == expected


def test_newcomer_whose_script_makes_its_iterator_only_when_it_needs_one():
    script = Script("shuffled", begun=False)
    script.take(2)
    record = script.state.record()
    expected = script.take(PER_EPOCH)
    newcomer = Script("shuffled", seed=1, begun=False)
    newcomer.state.restore_record(record)
    assert newcomer.take(PER_EPOCH) == expected


@pytest.mark.parametrize("kind", ["shuffled", "workers"])
def test_newcomer_that_is_restored_again_before_it_made_its_iterator(kind):
    """A second fault comes before its first step: what was laid out for its first iter() still waits for it."""
    script = Script(kind, begun=False)
    script.take(2)
    record = script.state.record()
    expected = [script.take(PER_EPOCH), float(torch.rand(()))]
    newcomer = Script(kind, seed=1, begun=False)
    for _ in range(2):
        newcomer.state.restore_record(record)
    assert [newcomer.take(PER_EPOCH), float(torch.rand(()))] == expected


@pytest.mark.parametrize("kind", ["shuffled", "workers"])
def test_rolled_back_to_before_the_first_iterator(kind):
    script = Script(kind, begun=False)
    record = script.state.record()
    expected = script.take(PER_EPOCH + 2)
    script.held = None
    script.state.restore_record(record)
    assert script.take(PER_EPOCH + 2) == expected


@pytest.mark.parametrize("kind", ["shuffled", "workers"])
def test_taking_a_record_changes_nothing(kind):
    watched, alone = [Script(kind, begun=False) for _ in range(2)]
    torch.manual_seed(9)
    watched.state.record()
    first = [torch.rand(()), watched.take(3), torch.rand(())]
    torch.manual_seed(9)
    assert [torch.rand(()), alone.take(3), torch.rand(())] == first


def test_twice_and_after_a_restore_the_workers_are_still_looked_after():
    script = Script("workers")
    script.take(2)
    record = script.state.record()
    expected = script.take(3)
    for _ in range(2):
        script.state.restore_record(record)
        assert script.take(3) == expected
    assert script.held is not None
    with pytest.raises(RuntimeError, match="killed by signal"):
        script.held._workers[0].kill()
        threading.Event().wait(LIMIT_S)  # torch raises here, when it is told of the death


def test_control_the_loaders_own_load_state_dict_leaves_a_held_iterator_where_it_was():
    script = Script("in order")
    script.take(2)
    state = script.loader.state_dict()
    expected = script.take(1)
    script.loader.load_state_dict(state)
    assert script.take(1) != expected


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: iter(StatefulDataLoader(range(4))), "pass the loader itself"),
        (lambda: StatefulDataLoader(range(4), num_workers=1, in_order=False), "in_order=False"),
        (
            lambda: StatefulDataLoader(range(4), sampler=RandomSampler(range(4))),
            "torch's RandomSampler cannot be saved",
        ),
    ],
)
def test_what_could_not_be_exact_is_refused(make, reason):
    with pytest.raises(ConfigError, match=reason):
        ProtectedState({"data": make()}, replicas={}, rank=0, node_of=lambda rank: rank)
