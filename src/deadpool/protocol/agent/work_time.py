"""How long a node's ranks work at their steps, and do not wait for others, as its agent sees it.

What a trainer can say of a single step is a rough estimate, as it is sampled. So steps are put together until they have
taken CHUNK_S, and the median of the last chunks is told: one long step, or one bad sample, does not move it.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from deadpool.protocol.messages import Effort, Stepped

CHUNK_S = 2.0
WINDOW = 12
ENOUGH = 3
"""Chunks of which the median is told, at most and at least."""


@dataclass(slots=True)
class _Chunk:
    steps: int = 0
    step_s: float = 0.0
    waited_s: float = 0.0


@dataclass(slots=True)
class _RankEffort:
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


class EffortBook:
    def __init__(self) -> None:
        self._ranks: dict[int, _RankEffort] = {}

    def clear(self) -> None:
        """At a fence: others may take these ranks."""
        self._ranks.clear()

    def stepped(self, rank: int, news: Stepped) -> None:
        if news.waited_s is not None:
            self._ranks.setdefault(rank, _RankEffort()).add(news.step_s, news.waited_s)

    def told(self) -> tuple[Effort, ...]:
        return tuple(
            Effort(rank=rank, step_s=statistics.median(effort.step_s), own_s=statistics.median(effort.own_s))
            for rank, effort in self._ranks.items()
            if len(effort.own_s) >= ENOUGH
        )
