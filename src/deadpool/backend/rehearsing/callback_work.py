"""A torch.distributed Work that runs a callback once it has been waited for.

The result of a collective is in its tensors only after a wait(), so that is the first moment at which it can be
recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
