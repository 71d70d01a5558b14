"""Folds the events of recoveries: how many there were, what each phase took, what they cost.

The times are those that `deadpool show story` tells: `deadpool.events.story` computes them from the same records.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from deadpool.events.story import PHASES, Recovery, began_at, recoveries
from deadpool.views.metrics.step_times import Histogram

Record = dict[str, Any]
PHASE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
KINDS = ("node", "trainer", "hang", "drain", "protection")
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
