"""How long steps took, as counts in fixed buckets: of bounded size however many steps there are."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

STEP_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(slots=True)
class Histogram:
    """`counts` has one more item than `bounds`: what is above the last bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def merge(self, counts: list[int], total: float) -> None:
        """Adds what another histogram with the same bounds has counted."""
        self.counts = [one + other for one, other in zip(self.counts, counts, strict=True)]
        self.total += total


class StepTimes:
    """Durations of the steps of a node's ranks, since its agent began."""

    def __init__(self) -> None:
        self.by_rank: dict[int, Histogram] = {}

    def add(self, rank: int, seconds: float) -> None:
        if rank not in self.by_rank:
            self.by_rank = {
                **self.by_rank,
                rank: Histogram(STEP_BUCKETS_S),
            }  # another thread may be reading the old one
        self.by_rank[rank].add(seconds)

    def facts(self) -> dict[str, Any]:
        """Returns the times of rank 0, for the coordinator: in synchronous training all ranks' steps take the same
        time.
        """
        if 0 not in self.by_rank:
            return {}
        first = self.by_rank[0]
        return {"step_counts": list(first.counts), "step_seconds": first.total}
