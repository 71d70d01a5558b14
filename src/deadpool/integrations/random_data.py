"""Refuses training data whose batches depend on random numbers, or on an order that cannot be drawn again.

A loop that is entered again at some step skips the batches before it. What they would have drawn is not drawn then, so
the batches after it would be others than in an undisturbed run, and nobody would notice.
"""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from torch.utils.data._utils import fetch

from deadpool.errors import ConfigError
from deadpool.host.notes import note
from deadpool.snapshot.state.rng import capture_rng, restore_rng

_checked: set[int] = set()  # ids of datasets
_REFUSED = (
    "the training data draws random numbers while a batch is made{found}, so the batches after a recovery would be "
    "others than without one: draw them in the model, or from a generator that is seeded by the index of the sample"
)


def require_repeatable(loader: Any) -> None:
    """Refuses batches of this loader's dataset, from now on, if making them draws random numbers."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ConfigError(
            "an IterableDataset cannot be protected here: its batches can only be read from the first one"
        )
    if loader.num_workers > 0 and _start_method(loader) != "fork":
        raise ConfigError("workers of the training loader have to be forked: give multiprocessing_context='fork'")
    _require_equal_twice(loader)
    _checked.add(id(dataset))
    if not hasattr(fetch._MapDatasetFetcher.fetch, "__wrapped__"):
        fetch._MapDatasetFetcher.fetch = _checking(fetch._MapDatasetFetcher.fetch)  # type: ignore[method-assign]


def _start_method(loader: Any) -> str:
    context = loader.multiprocessing_context or torch.multiprocessing.get_context()
    return str(context.get_start_method())


def _require_equal_twice(loader: Any) -> None:
    """A batch that is made twice differs if any generator is used, be it one of the dataset's or the collator's own."""
    before = capture_rng()
    indices = list(range(min(4, len(loader.dataset))))
    try:
        one, other = (loader.collate_fn([loader.dataset[index] for index in indices]) for _ in range(2))
    except Exception as error:
        note(f"whether training data is random could not be tried out: {type(error).__name__}: {error}")
        return
    finally:
        restore_rng(before)
    if not _equal(one, other):
        raise ConfigError(_REFUSED.format(found=" (the same batch, made twice, differs)"))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if hasattr(one, "keys"):
        return list(one.keys()) == list(other.keys()) and all(_equal(one[key], other[key]) for key in list(one))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(itertools.starmap(_equal, zip(one, other, strict=True)))
    return bool(type(one) is type(other) and (one == other or not isinstance(one, int | float | str)))


def _checking(original: Any) -> Any:
    @functools.wraps(original)
    def checked(self: Any, indices: Any) -> Any:
        if id(self.dataset) not in _checked:
            return original(self, indices)
        batch, drawn = _make(original, self, indices)
        if drawn:  # if not again, another thread has drawn meanwhile
            again, drawn = _make(original, self, indices)
            if drawn or not _equal(batch, again):
                raise ConfigError(_REFUSED.format(found=f" (from {', '.join(drawn) or 'a generator'})"))
        return batch

    return checked


def _make(original: Any, fetcher: Any, indices: Any) -> tuple[Any, list[str]]:
    """The batch, and the generators that were used meanwhile."""
    before = _generators()
    batch = original(fetcher, indices)
    return batch, [name for name, state in _generators().items() if state != before[name]]


def _generators() -> dict[str, Any]:
    _, words, position, *_ = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (np.asarray(words).tobytes(), position),
        "random": random.getstate(),
    }
