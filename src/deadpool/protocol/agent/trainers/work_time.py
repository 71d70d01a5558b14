"""How long a node's ranks work in a step, without the time in which they wait for other ranks.

What a trainer measures of a single step is a rough estimate, because it samples. So steps are put together into spans
of at least SPAN_S, and the median of the last spans is reported: one long step, or one bad sample, does not move it.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from deadpool.protocol.messages import Stepped, WorkTime

SPAN_S = 2.0
WINDOW = 12
ENOUGH = 3
"""The median is over at most WINDOW spans, and is not reported of fewer than ENOUGH."""


@dataclass(slots=True)
class _Span:
    steps: int = 0
    step_s: float = 0.0
    waited_s: float = 0.0


@dataclass(slots=True)
class _RankWorkTime:
    open: _Span = field(default_factory=_Span)
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    own_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, step_s: float, waited_s: float) -> None:
        span = self.open
        span.steps += 1
        span.step_s += step_s
        span.waited_s += waited_s
        if span.step_s >= SPAN_S:
            self.step_s.append(span.step_s / span.steps)
            self.own_s.append(max(0.0, span.step_s - span.waited_s) / span.steps)
            self.open = _Span()


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
