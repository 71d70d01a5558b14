"""Steps and recoveries as figures.

`Histogram` and `StepTimes`: how long steps took, as counts in fixed buckets: of bounded size however many steps
there are.

`RecoveryFold` folds the events of recoveries: how many there were, what each phase took, what they cost.

The times are those that `deadpool show story` tells: `deadpool.events.story` computes them from the same records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from deadpool.events.story import PHASES, Recovery, began_at, recoveries

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


Record = dict[str, Any]
PHASE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
KINDS = ("node", "trainer", "hang", "drain", "protection", "corruption")
_KEPT = {
    *("fault", "handover", "reconfiguration", "fenced", "planned", "prepared", "go", "rebuilt", "resumed"),
    *("signal_sent", "injected"),
}
_ENDS = {"finished", "completed", "failed"}


def kind_of(record: Record) -> str:
    """Returns what was lost by a fault or a handover."""
    if record["what"] == "handover":
        return "drain"
    if record["what"] == "reconfiguration":
        return "protection"
    if record.get("kind") == "corruption":
        return "corruption"
    if not record.get("ranks"):
        return "hang"
    return "trainer" if record.get("rank") is not None else "node"


class RecoveryFold:
    def __init__(self) -> None:
        self.faults = Counter(dict.fromkeys(KINDS, 0))
        self.recoveries = Counter(dict.fromkeys(KINDS, 0))
        self.seconds = Histogram(PHASE_BUCKETS_S)
        self.phases = {phase: Histogram(PHASE_BUCKETS_S) for phase in PHASES}
        self.lost_steps = 0
        self.stopped_s = 0.0  # in which no rank trained, in recoveries that are over
        self.began: float | None = None  # the recovery that is under way
        self._resuming: set[int | None] = set()  # ranks that have not done a step since the last `go`
        self._kept: list[Record] = []  # what is needed of the events since the last recovery

    def add(self, record: Record) -> None:
        what = record["what"]
        if what in ("fault", "handover", "reconfiguration"):
            self._begin(record)
        elif what == "took_over" and not record.get("running") and self.began is None:
            self.began = float(record["t"]) - float(record.get("alone_s") or 0.0)  # a recovery follows
        if what in _KEPT:
            self._kept.append(record)
        if what == "go":
            self._go(record)
        elif what == "resumed":
            self._resume(record)
        elif what in _ENDS:
            self._complete()

    def _begin(self, record: Record) -> None:
        """A fault in mid-recovery belongs to the recovery that is under way. One after `go` begins another, also where
        some ranks have not done a step since."""
        self.faults[kind_of(record)] += 1
        if self.began is None:
            self._complete()
            self.began = began_at(record)

    def _go(self, record: Record) -> None:
        """Every rank has reported `rebuilt` by now, and reports `resumed` after its first step."""
        self._resuming = {r.get("rank") for r in self._kept if r["what"] == "rebuilt" and _same_generation(r, record)}
        if self.began is not None:
            self.stopped_s += float(record["t"]) - self.began
            self.began = None

    def _resume(self, record: Record) -> None:
        if record.get("rank") in self._resuming:
            self._resuming.discard(record.get("rank"))
            if not self._resuming:
                self._complete()

    def _complete(self) -> None:
        for recovery in recoveries(sorted(self._kept, key=lambda record: float(record["t"]))):
            self._count(recovery)
        self._kept.clear()

    def _count(self, recovery: Recovery) -> None:
        self.recoveries[kind_of(recovery.fault)] += 1
        self.lost_steps += recovery.lost_steps
        for phase, seconds in recovery.phases_s.items():
            self.phases[phase].add(max(0.0, seconds))  # clocks of two machines differ a little
        self.seconds.add(sum(recovery.phases_s.values()))


def _same_generation(one: Record, other: Record) -> bool:
    return bool(one.get("generation") == other.get("generation"))
