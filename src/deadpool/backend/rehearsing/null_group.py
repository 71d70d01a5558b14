"""A process group that communicates with no peer and whose works carry futures with results.

The reducer of DistributedDataParallel uses it while a spare rehearses: the reducer reads the result out of the future
of each all-reduce, and the future of torch's own fake work holds nothing. Only what the reducer calls is implemented.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from deadpool.backend.torch_versions import Work


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
