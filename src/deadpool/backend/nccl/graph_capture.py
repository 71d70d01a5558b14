"""Refuses CUDA graphs that hold collectives, where they are captured.

A graph replays the kernels of the communicators that it was captured with. A recovery ends those, and nothing can put
others into the graph: its next replay would wait for ever, or compute with memory that was freed. Every collective gets
a number from its group, also one that C++ begins, so a group that has counted while a graph was captured is in it.
Point-to-point operations are not numbered in all versions of torch, and not seen.
"""

from __future__ import annotations

from typing import Any

import torch

from deadpool.backend import world
from deadpool.backend.nccl import backends as nccl
from deadpool.errors import Inexact

_GRAPH: Any = torch.cuda.CUDAGraph
_BEGIN, _END = "capture_begin", "capture_end"


class GraphCapture:
    def __init__(self) -> None:
        self._originals: dict[str, Any] = {}
        self._before: dict[str, int] = {}

    def install(self) -> None:
        if self._originals:
            return
        self._originals = {name: getattr(_GRAPH, name) for name in (_BEGIN, _END)}
        begin, end = self._originals[_BEGIN], self._originals[_END]

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            begin(graph, *args, **kwargs)
            self._before = _collectives_so_far()

        def capture_end(graph: Any) -> None:
            end(graph)
            self._refuse_collectives(graph)

        setattr(_GRAPH, _BEGIN, capture_begin)
        setattr(_GRAPH, _END, capture_end)

    def uninstall(self) -> None:
        for name, method in self._originals.items():
            setattr(_GRAPH, name, method)
        self._originals = {}

    def _refuse_collectives(self, graph: Any) -> None:
        held = [name for name, count in _collectives_so_far().items() if count > self._before.get(name, 0)]
        if held:
            graph.reset()  # nobody replays it by mistake
            raise Inexact(
                f"this CUDA graph holds collectives of group {', '.join(map(repr, held))}, and after a fault it would "
                "replay communicators that are gone. Leave collectives outside of the graph (capture forward and "
                "backward of the module below DDP or FSDP, reduce behind it), or run without CUDA graphs"
            )


def _collectives_so_far() -> dict[str, int]:
    """Counts them by the name of each group that communicates over NCCL; the groups of a rehearsal do not."""
    over_nccl = [(group, group.nccl) for group in world.joined_groups() if group.nccl is not None]
    return {group.name: nccl.collectives_so_far(group.backend(name)) or 0 for group, name in over_nccl}
