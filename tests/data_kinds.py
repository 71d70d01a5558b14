"""Loaders as people have them, for tests of their positions: each kind is random in another place."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, WeightedRandomSampler

WIDTH, ROWS, BATCH = 24, 18, 4
"""Four batches and a smaller one."""


class Rows(Dataset[torch.Tensor]):
    def __init__(self, *, is_random: bool = False, own: Any = None) -> None:
        self.is_random, self.own, self.made = is_random, own, 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        self.made += 1
        row = torch.full((WIDTH,), float(index))
        if self.is_random:
            row = row + torch.rand(WIDTH) + random.random() + np.random.rand()
        if self.own is not None:
            row = row + self.own.random()
        return row


class LazyRows(Rows):
    """It makes at its first sample what it reads from, and notes that it has."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_made = False

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.is_made:
            self.table = torch.arange(float(ROWS)).view(ROWS, 1).expand(ROWS, WIDTH).contiguous()
            self.is_made = True
        return super().__getitem__(index) + self.table[index]


class Stream(IterableDataset[torch.Tensor]):
    """`buffer`: samples leave it in an order that is drawn from the process's generators, or from its own."""

    def __init__(self, *, buffer: int = 0, permuted: bool = False, own: Any = None) -> None:
        self.buffer, self.permuted, self.own = buffer, permuted, own

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        part, parts = (0, 1) if info is None else (info.id, info.num_workers)
        order = torch.randperm(ROWS).tolist() if self.permuted else list(range(ROWS))
        waiting: list[int] = []
        for index in order[part::parts]:
            waiting.append(index)
            if len(waiting) > self.buffer:
                yield torch.full((WIDTH,), float(waiting.pop(self._choose(len(waiting)))))
        for index in waiting:
            yield torch.full((WIDTH,), float(index))

    def _choose(self, count: int) -> int:
        if not self.buffer:
            return 0
        return int(self.own.integers(count)) if self.own is not None else random.randrange(count)


class StreamWithState(Stream):
    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < ROWS:
            self.at += 1
            yield torch.full((WIDTH,), float(self.at))
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class OwnOrder(Sampler[int]):
    """Draws each epoch's order from a generator that it keeps."""

    def __init__(self) -> None:
        self.rng, self.epochs = np.random.default_rng(5), 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        return iter(self.rng.permutation(ROWS).tolist())

    def __len__(self) -> int:
        return ROWS


def mask(rows: list[torch.Tensor]) -> torch.Tensor:
    """As a collator for masked language models does."""
    batch = torch.stack(rows)
    return batch.masked_fill(torch.rand(batch.shape) < 0.5, -1.0) + np.random.rand()


class OwnMask:
    """Its generator is made with the first batch."""

    def __init__(self) -> None:
        self.generator: torch.Generator | None = None

    def __call__(self, rows: list[torch.Tensor]) -> torch.Tensor:
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(9)
        batch = torch.stack(rows)
        return batch.masked_fill(torch.rand(batch.shape, generator=self.generator) < 0.5, -1.0)


Make = Callable[[], DataLoader[Any]]


def _rows(rows: type[Rows] = Rows, **options: Any) -> Make:
    def make() -> DataLoader[Any]:
        kind = {key: options[key] for key in ("is_random",) if key in options}
        rest = {key: value for key, value in options.items() if key not in ("is_random", "own_data", "sampler")}
        own = np.random.default_rng(3) if options.get("own_data") else None
        if "sampler" in options:
            rest["sampler"] = options["sampler"]()
        if rest.get("collate_fn") is OwnMask:
            rest["collate_fn"] = OwnMask()
        return DataLoader(rows(own=own, **kind), batch_size=BATCH, **rest)

    return make


def _stream(kind: type[Stream] = Stream, *, own: bool = False, kept: dict[str, Any] | None = None, **rest: Any) -> Make:
    def make() -> DataLoader[Any]:
        more = {"own": np.random.default_rng(3)} if own else {}
        return DataLoader(kind(**more, **(kept or {})), batch_size=BATCH, **rest)

    return make


def _weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler(torch.arange(1.0, ROWS + 1).tolist(), ROWS)


IN_PROCESS: dict[str, Make] = {
    "shuffled, random collator": _rows(shuffle=True, collate_fn=mask),
    "random rows": _rows(shuffle=True, is_random=True),
    "rows with a generator of their own": _rows(shuffle=True, own_data=True),
    "collator with a generator of its own": _rows(collate_fn=OwnMask),
    "rows that are made at the first one": _rows(LazyRows, shuffle=True, is_random=True),
    "own sampler": _rows(sampler=OwnOrder, collate_fn=mask),
    "weighted sampler": _rows(sampler=_weighted),
    "stream": _stream(collate_fn=mask),
    "stream with a state": _stream(StreamWithState, collate_fn=mask),
    "stream, permuted": _stream(kept={"permuted": True}, collate_fn=mask),
    "stream, buffer with a generator of its own": _stream(own=True, kept={"buffer": 5}, collate_fn=mask),
}
WORKERS: dict[str, Make] = {
    "random rows, workers": _rows(shuffle=True, is_random=True, num_workers=2),
    "rows that are made at the first one, workers": _rows(LazyRows, shuffle=True, is_random=True, num_workers=2),
    "rows that are made at the first one, persistent workers": _rows(
        LazyRows, shuffle=True, is_random=True, num_workers=2, persistent_workers=True
    ),
    "random collator, three workers": _rows(shuffle=True, collate_fn=mask, num_workers=3),
    "own sampler, persistent workers": _rows(sampler=OwnOrder, is_random=True, num_workers=2, persistent_workers=True),
    "collator of its own, persistent workers": _rows(
        shuffle=True, collate_fn=OwnMask, num_workers=2, persistent_workers=True
    ),
    "stream, buffer, workers": _stream(kept={"buffer": 3}, collate_fn=mask, num_workers=2),
    "stream, buffer, persistent workers": _stream(
        kept={"buffer": 3, "permuted": True}, collate_fn=mask, num_workers=2, persistent_workers=True
    ),
}
SPAWNED: dict[str, Make] = {
    "spawned workers": _rows(shuffle=True, is_random=True, num_workers=2, multiprocessing_context="spawn"),
}
