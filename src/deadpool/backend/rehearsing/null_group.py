"""A process group without peers, and the works that it returns.

`CallbackWork`: a torch.distributed Work that runs a callback once it has been waited for.

The result of a collective is in its tensors only after a wait(), so that is the first moment at which it can be
recorded.

`NullGroup`: a process group that communicates with no peer and whose works carry futures with results.

The reducer of DistributedDataParallel uses it while a spare rehearses: the reducer reads the result out of the
future of each all-reduce, and the future of torch's own fake work holds nothing. Only what the reducer calls is
implemented.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend.torch_versions import Work


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
