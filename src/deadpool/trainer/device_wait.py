"""Whether the main thread stands still in a call that waits for its GPU.

Such a wait spins: to the kernel, a rank that waits for its device looks as busy as one that computes. Evidence is that
nothing changes for a while: the same instruction of the script, no new tensor on the device, and work on the device
that does not end. A rank that evaluates or compiles makes tensors, or its device is idle.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from deadpool.snapshot.cuda import runtime

_RELAXED = 2  # cudaStreamCaptureModeRelaxed


class DeviceWait:
    """begin_step() is for the main thread, everything else for one other thread."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None  # the one that the script computes on
        self._seen: tuple[int, int, int] | None = None
        self._is_relaxed = False

    def begin_step(self) -> None:
        if torch.cuda.is_initialized():
            self._stream = torch.cuda.current_stream()

    def stands_still(self, thread: int) -> bool:
        """Whether nothing has changed since the last call, and the device works."""
        stream, frame = self._stream, sys._current_frames().get(thread)
        if stream is None or frame is None:
            return False
        here = (id(frame), frame.f_lasti)
        if self._seen is None or self._seen[:2] != here:
            self._seen = (*here, -1)
            return False
        before, self._seen = self._seen, (*here, _tensors_made(stream.device))
        return before == self._seen and self._works(stream)

    def _works(self, stream: torch.cuda.Stream) -> bool:
        self._allow_captures()
        try:
            return not stream.query()  # type: ignore[no-untyped-call]
        except RuntimeError:
            return False  # the device is broken: the main thread finds out

    def _allow_captures(self) -> None:
        """A query in this thread would otherwise spoil a CUDA graph that the script captures at this moment."""
        found = runtime() if not self._is_relaxed else None
        if found is not None:
            found.exchange_capture_mode(_RELAXED)
            self._is_relaxed = True


def _tensors_made(device: torch.device) -> int:
    stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(device)
    return int(stats.get("allocation", {}).get("all", {}).get("allocated", 0))
