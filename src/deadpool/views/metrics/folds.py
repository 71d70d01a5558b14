"""Folds: figures that monitoring systems ask for, counted from events as they come.

`JobFold` folds all events of a job into the figures that its coordinator exposes, `RecoveryFold` those of recoveries:
how many there were, what each phase took, what they cost. The times are those of the records, and the same that
`deadpool show story` tells, so that a coordinator that takes over, or one that is started again, gets the same figures
from the same log. `EventTail` reads that log as it grows.

`Histogram` counts durations in fixed buckets: its size is bounded, however many steps there are. `NodeFacts` is what
one agent exposes of its own node.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deadpool.events.story import PHASES, Recovery, began_at, recoveries

Record = dict[str, Any]
JOB_PHASES = ("starting", "running", "recovering", "waiting", "completed", "failed")
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

STEP_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


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
            is_of_node = record.get("rank") is None  # else a trainer of it has ended, and its agent is there
            self.unwritten = {each for each in self.unwritten if each[0] != record["node"] or not is_of_node}
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


PHASE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
KINDS = ("node", "trainer", "hang", "drain", "protection", "corruption", "audit")
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
        return "audit" if record.get("kind") == "audit" else "hang"
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


class EventTail:
    """Whole lines only: the last one may still be being written, or its writer was killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            if self._path.stat().st_size < self._offset:
                self._offset = 0  # another file has its name now
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                record = _parse(line)
                if record is not None:
                    yield record


def _parse(line: bytes) -> dict[str, Any] | None:
    """None: a line that was cut short by a kill, and that the next coordinator has continued."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "what" in record else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    node: str
    connected: bool
    step_times: Mapping[int, Histogram]  # by rank
    trainers: Mapping[str, int]  # processes by state
    arena_bytes: int
    sent_bytes: int
    sent_seconds: float
    events: Mapping[str, int]  # that this agent has reported, by name
