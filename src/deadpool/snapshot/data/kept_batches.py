"""Batches that were drawn, kept for steps that are redone. Nothing is copied but numpy arrays and containers.

A script may write into a batch. Torch counts that, and a batch that was written into is drawn again instead.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from deadpool.snapshot.data.generators import Generators

MOST_BYTES = 64 << 20
"""How much all kept batches of a loader may take. A rank that returns further draws again."""
MOST_BATCHES = 4096
_PLAIN = (int, float, bool, str, bytes, complex, type(None), np.bool_, np.number)


class _CannotKeepError(Exception):
    pass


class KeptBatch:
    def __init__(self, batch: Any) -> None:
        self._tensors: list[tuple[Tensor, int]] = []
        self.nbytes = 0
        try:
            self._batch: Any = _copied(batch, self._note)
            self._is_kept = True
        except (_CannotKeepError, RuntimeError):  # torch counts no writes into tensors of its inference mode
            self._batch, self._is_kept = None, False

    @property
    def is_unchanged(self) -> bool:
        return self._is_kept and all(tensor._version == version for tensor, version in self._tensors)

    def batch(self) -> Any:
        """Returns it in new containers: a step may take entries out of them."""
        return _copied(self._batch, lambda _: None)

    def _note(self, leaf: Any) -> None:
        self.nbytes += leaf.nbytes
        if isinstance(leaf, Tensor):
            self._tensors.append((leaf, leaf._version))


@dataclass(frozen=True, slots=True)
class Draw:
    """Describes one batch: the generators before and after it, if it has used them, and what workers had told."""

    index: int
    kept: KeptBatch
    before: Generators | None
    after: Generators | None
    workers: dict[int, bytes]  # before it
    held: dict[str, bytes]  # by dataset and collator, before it
    source: Any  # the dataset's own state before it


class Draws:
    """Keeps the newest draws of an iteration, in their order, and knows from which one on all are there."""

    def __init__(self, first: int) -> None:
        self._draws: list[Draw] = []
        self._first, self._bytes = first, 0

    def add(self, draw: Draw, needed: int) -> None:
        """`needed` of the newest are kept whatever they take."""
        self._draws.append(draw)
        self._bytes += draw.kept.nbytes
        while len(self._draws) > needed and (self._bytes > MOST_BYTES or len(self._draws) > MOST_BATCHES):
            self._bytes -= self._draws.pop(0).kept.nbytes
            self._first += 1

    def since(self, index: int) -> list[Draw] | None:
        """Returns the draws from there on; None: not all of them are there."""
        return self._draws[index - self._first :] if index >= self._first else None

    def at(self, index: int) -> Draw | None:
        place = index - self._first
        return self._draws[place] if 0 <= place < len(self._draws) else None


def _copied(value: Any, note: Callable[[Any], None]) -> Any:
    if isinstance(value, Tensor):
        note(value)
        return value
    if isinstance(value, np.ndarray):
        note(value)
        return value.copy()
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (list, tuple):
        return type(value)(_copied(each, note) for each in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copied(each, note) for each in value))
    if type(value) is dict:
        return {key: _copied(each, note) for key, each in value.items()}
    if isinstance(value, UserDict):
        again = copy.copy(value)
        again.data = _copied(dict(value.data), note)
        return again
    raise _CannotKeepError
