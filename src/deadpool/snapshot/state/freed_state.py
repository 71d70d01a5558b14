"""The device memory of a parked trainer's state: given back while the trainer waits, and allocated again for its seat.

Nothing is copied: whoever takes a seat loads a snapshot over all of it. Only storages whose every byte belongs to the
protected state are freed, because only these are written completely by a restore.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class FreedState:
    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """`tensors` are what a restore writes, as plain tensors."""
        self._sizes = {storage: storage.nbytes() for storage in _whole_storages(tensors)}

    @property
    def nbytes(self) -> int:
        return sum(self._sizes.values())

    def free(self) -> None:
        for storage in self._sizes:
            storage.resize_(0)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # else this process keeps it

    def allocate(self) -> None:
        """The contents are anything."""
        for storage, nbytes in self._sizes.items():
            storage.resize_(nbytes)


def _whole_storages(tensors: Iterable[Tensor]) -> list[torch.UntypedStorage]:
    found: dict[int, tuple[torch.UntypedStorage, dict[tuple[int, int], int]]] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        parts = found.setdefault(storage._cdata, (storage, {}))[1]
        parts[int(tensor.storage_offset()), tensor.numel()] = tensor.numel() * tensor.itemsize
    return [
        storage for storage, parts in found.values() if storage.nbytes() and sum(parts.values()) == storage.nbytes()
    ]
