"""Finds training data that draws random numbers while batches are made, in this process or in a loader's workers.

A loop that is entered again at some step skips the batches before it. Their random numbers are not drawn then, so the
batches after it would be others than in an undisturbed run, and nobody would notice.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import fetch

from deadpool.errors import ConfigError

_checked: set[int] = set()  # ids of datasets


def require_no_random_data(loader: Any) -> None:
    """From here on batches of this loader's dataset are refused if making them draws random numbers."""
    _checked.add(id(loader.dataset))
    if not hasattr(fetch._MapDatasetFetcher.fetch, "__wrapped__"):
        fetch._MapDatasetFetcher.fetch = _checking(fetch._MapDatasetFetcher.fetch)  # type: ignore[method-assign]


def _checking(stock: Any) -> Any:
    @functools.wraps(stock)
    def checked(self: Any, indices: Any) -> Any:
        if id(self.dataset) not in _checked:
            return stock(self, indices)
        before = _generators()
        batch = stock(self, indices)
        if drawn := [name for name, state in _generators().items() if state != before[name]]:
            raise ConfigError(
                f"the training data draws random numbers ({', '.join(drawn)}) while a batch is made, so the batches "
                "after a recovery would be others than without one: draw them in the model, or from a generator that "
                "is seeded by the index of the sample"
            )
        return batch

    return checked


def _generators() -> dict[str, Any]:
    _, words, position, *_ = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (np.asarray(words).tobytes(), position),
        "random": random.getstate(),
    }
