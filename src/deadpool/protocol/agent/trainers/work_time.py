"""How long a node's ranks work in a step, without the time in which they wait for other ranks.

What a trainer measures of a single step is a rough estimate, because it samples. So steps are put together into chunks
of at least CHUNK_S, and the median of the last chunks is reported: one long step, or one bad sample, does not move it.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from deadpool.protocol.messages import Stepped, WorkTime

CHUNK_S = 2.0
WINDOW = 12
ENOUGH = 3
"""The median is over at most WINDOW chunks, and is not reported of fewer than ENOUGH."""


@dataclass(slots=True)
class _Chunk:
    steps: int = 0
    step_s: float = 0.0
    waited_s: float = 0.0


@dataclass(slots=True)
class _RankWorkTime:
    open: _Chunk = field(default_factory=_Chunk)
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    own_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, step_s: float, waited_s: float) -> None:
        chunk = self.open
        chunk.steps += 1
        chunk.step_s += step_s
        chunk.waited_s += waited_s
        if chunk.step_s >= CHUNK_S:
            self.step_s.append(chunk.step_s / chunk.steps)
            self.own_s.append(max(0.0, chunk.step_s - chunk.waited_s) / chunk.steps)
            self.open = _Chunk()


class WorkTimes:
    def __init__(self) -> None:
        self._ranks: dict[int, _RankWorkTime] = {}

    def clear(self) -> None:
        """Forgets all times at a fence: other nodes may take these ranks."""
        self._ranks.clear()

    def on_stepped(self, rank: int, news: Stepped) -> None:
        if news.waited_s is not None:
            self._ranks.setdefault(rank, _RankWorkTime()).add(news.step_s, news.waited_s)

    def of_ranks(self) -> tuple[WorkTime, ...]:
        return tuple(
            WorkTime(rank=rank, step_s=statistics.median(work.step_s), own_s=statistics.median(work.own_s))
            for rank, work in self._ranks.items()
            if len(work.own_s) >= ENOUGH
        )
