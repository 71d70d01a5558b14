"""Begins an epoch's batches at any of them. Those before it are not loaded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from lightning.fabric.utilities.data import _set_sampler_epoch


def begin_at(fit_loop: Any, batch: int) -> None:
    fetcher = fit_loop._data_fetcher
    [loader] = fit_loop._combined_loader.flattened
    _set_sampler_epoch(loader, fit_loop.epoch_progress.current.processed)
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    order = getattr(loader, name)
    vars(loader)[name] = _Later(order, batch)  # a loader refuses that one sets it
    try:
        iter(fetcher)
    finally:
        vars(loader)[name] = order
    fetcher.fetched = batch


class _Later:
    def __init__(self, order: Any, first: int) -> None:
        self._order, self._first = order, first

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._order), self._first, None)

    def __len__(self) -> int:
        return len(self._order)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._order, name)
