"""torchdata's StatefulDataLoader over random sequences, used as in many training scripts: one iterator is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from deadpool.demo.gpt import Size

STEPS_PER_EPOCH = 5  # few, so that short runs have several epochs


class Sequences(Dataset[Tensor]):
    def __init__(self, size: Size, count: int) -> None:
        self._size, self._count = size, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(1_000_003 + index)
        return torch.randint(self._size.vocabulary, (self._size.sequence + 1,), generator=generator)


def make_loader(size: Size, *, sequences: int, data_rank: int, data_size: int) -> Any:
    """Makes a loader of `sequences` per step. Each epoch is shuffled; ranks with the same data rank get the same."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    dataset = Sequences(size, STEPS_PER_EPOCH * sequences * data_size)
    own = torch.utils.data.Subset(dataset, range(data_rank, len(dataset), data_size))
    # The sampler has its own generator: if the loader drew from it too, torchdata would restore a wrong state.
    sampler = RandomSampler(own, generator=torch.Generator().manual_seed(data_rank))
    return StatefulDataLoader(own, batch_size=sequences, sampler=sampler)


class Epochs:
    """Endless batches from a loader. Its only state is the iterator."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._iterator: Iterator[Tensor] = iter(loader)

    def __next__(self) -> tuple[Tensor, Tensor]:
        try:
            tokens = next(self._iterator)
        except StopIteration:
            self._iterator = iter(self._loader)
            tokens = next(self._iterator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
