"""What stands in for other ranks while a process rehearses one rank alone.

A live rank records the results of its small collectives, from the first line of its script to the end of its first
step. Only small results are kept: sizes, votes, shapes, the user's configuration. A process that rehearses the rank is
given the same results. Object collectives carry bytes that torch pickled; they are kept as bytes and never unpickled.
The result of a collective is in its tensors only after a wait(), so that is the first moment at which it can be
recorded: `CallbackWork` runs a callback then.

`NullGroup` is a process group that communicates with no peer and whose works carry futures with results. The reducer of
DistributedDataParallel uses it in a rehearsal: it reads the result out of the future of each all-reduce, and the future
of torch's own fake work holds nothing. Only what the reducer calls is implemented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import torch
import torch.distributed as dist

from deadpool.backend.torch_versions import Work

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


class CallbackWork(Work):  # type: ignore[misc]
    """Forwards everything to `work`; the first wait() that returns also runs the callback."""

    def __init__(self, work: Work, callback: Callable[[], None]) -> None:
        super().__init__()
        self._work: Any = work
        self._callback: Callable[[], None] | None = callback

    def wait(self, *timeout: Any, **keywords: Any) -> bool:
        done = bool(self._work.wait(*timeout, **keywords))
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
        return done


def _forwarding(method: str) -> Callable[..., Any]:
    def forward(self: CallbackWork, *arguments: Any) -> Any:
        return getattr(self._work, method)(*arguments)

    forward.__name__ = method
    return forward


for _method in (
    *("is_completed", "is_success", "exception", "result", "synchronize", "get_future", "get_future_result"),
    *("block_current_stream", "boxed", "source_rank", "_source_rank", "_get_op_type", "_get_duration"),
):
    if hasattr(Work, _method):
        setattr(CallbackWork, _method, _forwarding(_method))


class _DoneWork(Work):  # type: ignore[misc]
    """Is completed from the start; its result is its input."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}  # a future has to be told them in advance
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=[*devices])
        self._future.set_result(tensors)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        return self._future


class NullGroup(dist.ProcessGroup):
    """Every collective leaves its tensors as they are and is complete at once."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]

    def getBackendName(self) -> str:
        return "null"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        return _DoneWork(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        return _DoneWork(tensors)
