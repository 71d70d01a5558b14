"""What collectives gave one live rank, from the first line of its script to the end of its first step.

Small results only: sizes, votes, shapes, the user's configuration. Whoever rehearses the rank alone is given the same.
What object collectives carry are bytes that torch pickled; here they are bytes and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
import torch

TENSOR_LIMIT_BYTES = 64 * 1024
BOOK_LIMIT_BYTES = 1024 * 1024

Key = tuple[str, str, int]
"""Operation, group, and how many of this operation the group had done before."""


class RecordedCollectives:
    """Results by key, each the bytes of the tensors that the operation filled."""

    def __init__(self, *, limit_bytes: int = BOOK_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._results: dict[Key, tuple[bytes, ...]] = {}
        self.size_bytes = 0
        self.closed: str | None = None  # why nothing more is taken

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: Key) -> tuple[bytes, ...] | None:
        return self._results.get(key)

    def add(self, key: Key, tensors: Sequence[torch.Tensor]) -> None:
        """Never raises: what cannot be kept closes the book, so that all of it up to there is whole."""
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
        """No bytes at all are a book in which nothing was written."""
        book = cls()
        for operation, group, number, result in msgpack.unpackb(data) if data else ():
            book._results[operation, group, number] = tuple(result)
            book.size_bytes += sum(len(each) for each in result)
        return book


def can_be_kept(tensors: Sequence[torch.Tensor]) -> bool:
    """The same answer for who records and for who rehearses: both see tensors of the same size."""
    return bool(tensors) and all(tensor.nbytes <= TENSOR_LIMIT_BYTES for tensor in tensors)


def fill(tensors: Sequence[torch.Tensor], result: tuple[bytes, ...]) -> bool:
    """Puts a result where the collective would have put it. False: it is of another size, nothing was touched."""
    if [tensor.nbytes for tensor in tensors] != [len(each) for each in result]:
        return False
    for tensor, data in zip(tensors, result, strict=True):
        if data:
            values = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(tensor.dtype)
            tensor.data.copy_(values.view(tensor.shape))  # .data: autograd does not see communication
    return True


def _bytes_of(tensor: torch.Tensor) -> bytes:
    # Not contiguous(): what has one element counts as contiguous whatever its stride, and cannot be viewed as bytes.
    flat = tensor.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
