"""Device memory into which a capture is cloned as far as it was not copied to the host when the optimizer begins.

One capture at a time uses it: the lane asks whether the last one has ended. The memory is taken when it is first needed
and grows to what was needed most, never beyond the limit that the user has set, and never so far that less than a
twentieth of the device's memory stays free. Only the main thread uses it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deadpool.errors import DeviceError
from deadpool.snapshot.copying.cuda import Addresses

_STEP_BYTES = 64 << 20
"""The memory grows in such steps, so that it does not grow again for every slightly longer rest."""

_ALIGNED_BYTES = 512
"""Where each piece begins. Copies between odd addresses are slow."""

_FREE_SHARE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Clones:
    """The copies of one batch: from live memory into the clones, and from there to the host.

    It keeps the memory alive that the addresses name: the lane may have let go of it.
    """

    memory: Tensor
    clone: list[Addresses]
    store: list[Addresses]
    strided: list[tuple[Tensor, Tensor]]  # (clone, live)


class Aside:
    def __init__(self, device: torch.device, limit_bytes: int) -> None:
        self._device, self._limit_bytes = device, limit_bytes
        self._memory: Tensor | None = None
        self._most: int | None = None  # how large the memory may become; None: not known yet

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else self._memory.nbytes

    def room(self) -> int:
        if self._limit_bytes <= 0:
            return 0
        if self._most is None:
            free, total = torch.cuda.mem_get_info(self._device)
            self._most = min(self._limit_bytes, self.nbytes + max(0, free - int(_FREE_SHARE * total)))
        return self._most

    def release(self) -> None:
        """Lets go of the memory. Clones that are still copied keep it."""
        self._memory, self._most = None, None

    def take(self, nbytes: int) -> Tensor:
        """Returns memory for so many bytes, for work on the current stream. Raises DeviceError if there is none."""
        if self.nbytes < nbytes:
            self._memory = None
            rounded = -(-nbytes // _STEP_BYTES) * _STEP_BYTES
            wanted = min(rounded, max(nbytes, self._limit_bytes))
            try:
                self._memory = torch.empty(wanted, dtype=torch.uint8, device=self._device)
            except torch.OutOfMemoryError as error:
                self._most = 0  # until other tensors are captured
                raise DeviceError(f"no device memory to set {nbytes} bytes of a snapshot aside: {error}") from error
        assert self._memory is not None
        return self._memory


def aside_bytes(turns: Sequence[Addresses], strided: Sequence[tuple[Tensor, Tensor]]) -> int:
    """Returns how much memory the clones of one batch take."""
    sizes = sum(int(_aligned(_numbers(addresses.sizes)).sum()) for addresses in turns)
    return sizes + sum(int(_aligned(np.array([live.nbytes]))[0]) for _, live in strided)


def place_clones(
    turns: Sequence[Addresses], strided: Sequence[tuple[Tensor, Tensor]], memory: Tensor, start: int
) -> Clones:
    """Places the clones of one batch in the memory, from `start` on."""
    clones = Clones(memory, [], [], [])
    for addresses in turns:
        sizes = _aligned(_numbers(addresses.sizes))
        places = memory.data_ptr() + start + np.cumsum(sizes) - sizes
        start += int(sizes.sum())
        at = _pointers(places)
        # Copies within a device go one by one: the call for many of them is for copies beside computation.
        clones.clone.append(Addresses(False, at, addresses.device, addresses.sizes))
        clones.store.append(Addresses(addresses.registered, addresses.host, at, addresses.sizes))
    for stored, live in strided:
        clone = memory[start : start + live.nbytes].view(live.dtype).view(live.shape)
        start += int(_aligned(np.array([live.nbytes]))[0])
        clones.strided.append((clone, live))
        move = (stored.data_ptr(), clone.data_ptr(), live.nbytes)
        clones.store.append(Addresses.of([move], registered=stored.is_pinned()))
    return clones


def _numbers(array: ctypes.Array[Any]) -> np.ndarray:
    return np.array(list(array), np.int64)


def _aligned(sizes: np.ndarray) -> np.ndarray:
    return -(-sizes // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _pointers(places: np.ndarray) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * len(places)).from_buffer(bytearray(places.astype(np.uint64).tobytes()))
