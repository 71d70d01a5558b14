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
        self.pointers: list[int] = []
        try:
            self._batch: Any = _copied(batch, self._note)
            self._is_kept = True
        except (_CannotKeepError, RuntimeError):  # torch counts no writes into tensors of its inference mode
            self._batch, self._is_kept = None, False

    @property
    def is_unchanged(self) -> bool:
        return self._is_kept and all(tensor._version == version for tensor, version in self._tensors)

    def forget(self) -> None:
        """Forgets a batch whose memory holds a later one: numpy writes past the counters of torch."""
        self._batch, self._is_kept = None, False

    def batch(self) -> Any:
        """Returns it in new containers: a step may take entries out of them."""
        return _copied(self._batch, lambda _: None)

    def _note(self, leaf: Any) -> None:
        self.nbytes += leaf.nbytes
        if isinstance(leaf, Tensor):
            self._tensors.append((leaf, leaf._version))
            if leaf.numel():
                self.pointers.append(leaf.data_ptr())


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
        self._in_memory: dict[int, KeptBatch] = {}  # the newest with a tensor at that address

    def add(self, draw: Draw, needed: int) -> None:
        """`needed` of the newest are kept whatever they take."""
        self._draws.append(draw)
        for pointer in set(draw.kept.pointers):
            if (earlier := self._in_memory.get(pointer)) is not None:
                earlier.forget()
            self._in_memory[pointer] = draw.kept
        self._bytes += draw.kept.nbytes
        while len(self._draws) > needed and (self._bytes > MOST_BYTES or len(self._draws) > MOST_BATCHES):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        kept = self._draws.pop(0).kept
        self._bytes -= kept.nbytes
        self._first += 1
        for pointer in kept.pointers:
            if self._in_memory.get(pointer) is kept:
                del self._in_memory[pointer]

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
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
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
