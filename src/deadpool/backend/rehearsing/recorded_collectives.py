"""Results of the small collectives of one live rank, from the first line of its script to the end of its first step.

Only small results are kept: sizes, votes, shapes, the user's configuration. A process that rehearses the rank alone is
given the same results. Object collectives carry bytes that torch pickled; they are kept as bytes and never unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
import torch

TENSOR_LIMIT_BYTES = 64 * 1024
TOTAL_LIMIT_BYTES = 1024 * 1024

Key = tuple[str, str, int]
"""The operation, the group, and how many of this operation the group had done before."""


class RecordedCollectives:
    """Results by key. Each result is the bytes of the tensors that the operation filled."""

    def __init__(self, *, limit_bytes: int = TOTAL_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._results: dict[Key, tuple[bytes, ...]] = {}
        self.size_bytes = 0
        self.closed: str | None = None  # the reason why nothing more is recorded

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: Key) -> tuple[bytes, ...] | None:
        return self._results.get(key)

    def add(self, key: Key, tensors: Sequence[torch.Tensor]) -> None:
        """Keeps a result and never raises. A result that cannot be kept closes the recording, so that it has no gap up
        to there.
        """
        size_bytes = self.size_bytes + sum(tensor.nbytes for tensor in tensors)
        if size_bytes > self._limit_bytes:
            self.closed = self.closed or f"more than {self._limit_bytes} bytes"
        if self.closed is not None:
            return
        try:
            self._results[key] = tuple(_bytes_of(tensor) for tensor in tensors)
            self.size_bytes = size_bytes
        except (RuntimeError, TypeError) as error:  # a kind of tensor that has no bytes
            self.closed = f"{key[0]}: {error}"

    def copy(self) -> RecordedCollectives:
        twin = RecordedCollectives(limit_bytes=self._limit_bytes)
        twin._results = dict(self._results)
        twin.size_bytes, twin.closed = self.size_bytes, self.closed
        return twin

    def pack(self) -> bytes:
        return bytes(msgpack.packb([[*key, list(result)] for key, result in self._results.items()]))

    @classmethod
    def unpack(cls, data: bytes) -> RecordedCollectives:
        """Empty `data` gives an empty recording."""
        recorded = cls()
        for operation, group, number, result in msgpack.unpackb(data) if data else ():
            recorded._results[operation, group, number] = tuple(result)
            recorded.size_bytes += sum(len(each) for each in result)
        return recorded


def is_recordable(tensors: Sequence[torch.Tensor]) -> bool:
    """Depends on sizes only, so the live rank and a rehearsal of it get the same answer."""
    return bool(tensors) and all(tensor.nbytes <= TENSOR_LIMIT_BYTES for tensor in tensors)


def copy_into(tensors: Sequence[torch.Tensor], result: tuple[bytes, ...]) -> bool:
    """Puts a result where the collective would have put it. False: the sizes differ, and no tensor was touched."""
    if [tensor.nbytes for tensor in tensors] != [len(each) for each in result]:
        return False
    for tensor, data in zip(tensors, result, strict=True):
        if data:
            values = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(tensor.dtype)
            tensor.data.copy_(values.view(tensor.shape))  # .data: autograd does not see communication
    return True


def _bytes_of(tensor: torch.Tensor) -> bytes:
    # Not contiguous(): a tensor of one element counts as contiguous whatever its stride, and cannot be viewed as bytes.
    flat = tensor.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
