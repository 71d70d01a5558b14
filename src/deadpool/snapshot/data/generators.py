"""The generators of random numbers that making a batch may use: python's, numpy's and torch's, in host memory."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from deadpool.snapshot.record.record import decode, encode


class Generators:
    """The states of the generators at one moment. Two of them are equal if the same numbers would be drawn next."""

    def __init__(self, python: Any, numpy: Any, of_torch: torch.Tensor) -> None:
        self._python, self._numpy, self._torch = python, numpy, of_torch

    @classmethod
    def now(cls) -> Generators:
        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state())

    @classmethod
    def decoded(cls, data: bytes) -> Generators:
        return cls(*decode(data, "generators"))

    def encoded(self) -> bytes:
        return encode([self._python, self._numpy, self._torch], "generators")

    def restore(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Generators)
            and self._python == other._python
            and _of_numpy(self._numpy) == _of_numpy(other._numpy)
            and torch.equal(self._torch, other._torch)
        )

    __hash__ = None  # type: ignore[assignment]


def _of_numpy(state: Any) -> tuple[Any, ...]:
    inner = state["state"]
    return inner["key"].tobytes(), inner["pos"], state["has_gauss"], state["gauss"]


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """What is drawn inside was drawn once already, elsewhere or before: the generators stay where they are."""
    before = Generators.now()
    try:
        yield
    finally:
        before.restore()
