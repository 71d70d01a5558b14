"""Batches of a loader that Accelerate has made, drawn epoch after epoch: a process that returns to a step, and one that
was not there, draw what an undisturbed one draws."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

pytest.importorskip("accelerate")

from accelerate.data_loader import prepare_data_loader

from deadpool.integrations.accelerate.data import Endless
from deadpool.integrations.refusals import Refused
from deadpool.snapshot.state.rng import capture_rng, restore_rng

DRAWS, PER_EPOCH = 17, 5


class Stream(IterableDataset[Tensor]):
    def __init__(self) -> None:
        self._rng = np.random.default_rng(4)

    def __iter__(self) -> Iterator[Tensor]:
        yield from (torch.full((2,), float(each)) for each in self._rng.permutation(20))


def mask(rows: list[Tensor]) -> Tensor:
    x = torch.stack(rows)
    return x.masked_fill(torch.rand(x.shape) < 0.2, -1.0)


def make(kind: str) -> Endless:
    """Accelerate seeds the sampler's generator from torch's."""
    torch.manual_seed(3)
    rows = list(torch.arange(40.0).view(20, 2))
    of_stream = {"dataset": Stream(), "batch_size": 2}
    of_rows = {"dataset": rows, "batch_size": 2, "shuffle": True}
    loader = DataLoader(**(of_stream if kind == "stream" else of_rows), collate_fn=mask)  # type: ignore[arg-type]
    made = prepare_data_loader(
        loader, torch.device("cpu"), num_processes=2, process_index=0, put_on_device=False, dispatch_batches=False
    )
    torch.manual_seed(5)
    return Endless(made)


def drawn(batches: Endless, count: int) -> list[list[list[float]]]:
    return [each.tolist() for each in itertools.islice(batches, count)]


@pytest.mark.parametrize("kind", ["shuffled", "stream"])
@pytest.mark.parametrize("cut", [0, 1, 4, 5, 6, 9, 10, 12])
def test_batches_go_on_where_the_step_began(kind, cut):
    undisturbed = drawn(make(kind), DRAWS)
    batches, newcomer = make(kind), make(kind)
    torch.manual_seed(5)
    assert drawn(batches, cut) == undisturbed[:cut]
    state, rng = copy.deepcopy(batches.state_dict()), capture_rng()
    assert drawn(batches, 4) == undisturbed[cut : cut + 4]
    for going_on in (batches, newcomer):
        torch.manual_seed(99)
        going_on.load_state_dict(copy.deepcopy(state))
        restore_rng(rng)
        assert drawn(going_on, DRAWS - cut) == undisturbed[cut:]
        assert going_on.epoch == (DRAWS - 1) // PER_EPOCH


def test_loader_without_a_batch_is_refused():
    loader = prepare_data_loader(DataLoader([], batch_size=2), torch.device("cpu"), num_processes=2, process_index=0)
    with pytest.raises(Refused, match="no batch"):
        next(Endless(loader))
