"""A work of torch.distributed whose result is noted once it was waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._distributed_c10d import Work


class NotedWork(Work):
    """Another work, and what is to be done when it was waited for, once."""

    def __init__(self, work: Work, note: Callable[[], None]) -> None:
        super().__init__()
        self._work: Any = work
        self._note: Callable[[], None] | None = note

    def wait(self, *timeout: Any, **keywords: Any) -> bool:
        done = bool(self._work.wait(*timeout, **keywords))
        note, self._note = self._note, None
        if note is not None:
            note()
        return done


def _forwarding(method: str) -> Callable[..., Any]:
    def forward(self: NotedWork, *arguments: Any) -> Any:
        return getattr(self._work, method)(*arguments)

    forward.__name__ = method
    return forward


for _method in (
    *("is_completed", "is_success", "exception", "result", "synchronize", "get_future", "get_future_result"),
    *("block_current_stream", "boxed", "source_rank", "_source_rank", "_get_op_type", "_get_duration"),
):
    if hasattr(Work, _method):
        setattr(NotedWork, _method, _forwarding(_method))
