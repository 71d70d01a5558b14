"""Folds all events of a job into the figures that its coordinator exposes.

The times in it are those of the records, so that a coordinator that takes over, or one that is started again, gets the
same figures from the same log.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from deadpool.views.metrics.recovery_fold import STEP_BUCKETS_S, Histogram, RecoveryFold

Record = dict[str, Any]
PHASES = ("starting", "running", "recovering", "waiting", "completed", "failed")
_PHASE_AFTER = {
    "fault": "recovering",
    "handover": "recovering",
    "reconfiguration": "recovering",
    "awaiting_spare": "waiting",
    "awaiting_return": "waiting",
    "no_majority": "waiting",
    "planned": "recovering",
    "go": "running",
    "completed": "completed",
    "failed": "failed",
}


class JobFold:
    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.recoveries = RecoveryFold()
        self.phase = "starting"
        self.steps = 0  # completed ones, however often
        self.step_times = Histogram(STEP_BUCKETS_S)
        self.sent_bytes = 0
        self.carried_ranks = 0
        self.progress: Record = {}  # the newest one
        self.unwritten: set[tuple[str, str]] = set()  # whose disk, and what it does not take
        self.started: float | None = None  # when training began
        self.newest: float | None = None  # time of the newest event

    def add(self, record: Record) -> None:
        what, t = str(record["what"]), float(record.get("t") or 0.0)
        self.events[what] += 1
        self.newest = max(self.newest or t, t)
        self.recoveries.add(record)
        if what in _PHASE_AFTER and (what != "planned" or self.started is not None):
            self.phase = _PHASE_AFTER[what]
        elif what == "took_over" and not record.get("running"):
            self.phase = "recovering"
        if what == "took_over":  # the coordinator before cannot say any more that its disk is well
            self.unwritten = {each for each in self.unwritten if each[0]}
        elif what == "fault" and record.get("node"):
            self.unwritten = {each for each in self.unwritten if each[0] != record["node"] or record.get("rank")}
        if what == "go":
            self.started = self.started or t
        elif what in ("shrunk", "grown"):
            self.carried_ranks = len(record["carried"])
        elif what == "progress":
            self._on_progress(record)
        elif what == "storage_failed":
            self.unwritten.add(_storage_of(record))
        elif what == "storage_back":
            self.unwritten.discard(_storage_of(record))
        elif what == "planned":
            self.steps = max(self.steps, record["step"] + record["lost_steps"])

    def _on_progress(self, record: Record) -> None:
        self.progress = record
        self.steps = max(self.steps, record["step"])
        self.sent_bytes += record["sent_bytes"]
        self.step_times.merge(record["step_counts"], record["step_seconds"])

    def lost_s(self, until: float | None = None) -> float:
        """Time in which nothing new was computed: in recoveries, and with steps that were computed again. `until` is
        the time of the newest event if it is not given."""
        until, under_way = until or self.newest or 0.0, 0.0
        if self.recoveries.began is not None:
            under_way = max(0.0, until - self.recoveries.began)
        return self.recoveries.stopped_s + under_way + self.recoveries.lost_steps * self.mean_step_s

    @property
    def mean_step_s(self) -> float:
        return self.step_times.total / self.step_times.count if self.step_times.count else 0.0

    def trained_s(self, until: float | None = None) -> float:
        """Time since training began."""
        until = until or self.newest
        return max(0.0, until - self.started) if self.started is not None and until is not None else 0.0

    def goodput(self, until: float | None = None) -> float | None:
        """The share of the time since training began in which new steps were computed; None: it has not begun."""
        trained_s = self.trained_s(until)
        return max(0.0, 1.0 - self.lost_s(until) / trained_s) if trained_s else None


def _storage_of(record: Record) -> tuple[str, str]:
    return str(record.get("node") or ""), str(record.get("what_waits"))
