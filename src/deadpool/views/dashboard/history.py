"""The job as its event log tells it: one record after the other goes in, and what a page needs of them is kept.

Its size does not grow with the number of ranks or steps: of the records of a recovery only the milestones are kept, and
the rest is read again when somebody wants to see it. `Interruption` is a fault or drain as an operator counts it: what
stopped training, how long, and what that makes of the job.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from deadpool.events.silent_errors import SilentErrors
from deadpool.events.story import MILESTONES, PHASES, Recovery, began_at, recoveries
from deadpool.events.types import BY_NAME
from deadpool.views.dashboard.words import Series
from deadpool.views.metrics.folds import JobFold

Record = dict[str, Any]

_MILESTONES = {"fault", "handover", "reconfiguration", "fenced", "planned", "prepared", "go", "signal_sent", "injected"}
_WAITS = {"awaiting_spare", "awaiting_return", "no_majority", "cut_off"}
_ENDS = {"completed", "failed"}
_RECENT = 30
_REMEMBERED_RATE = 600


@dataclass(slots=True)
class NodeSeen:
    """What events say of a node. Its state while the job runs is told by the coordinator."""

    name: str
    spare: bool = False
    rack: str | None = None
    memory_bytes: int | None = None
    link_gbps: float | None = None
    lost: str | None = None  # how it was lost
    left: bool = False
    quarantined: str | None = None
    slow: str | None = None
    draining: bool = False
    rehearsed: bool = False
    last_ranks: tuple[int, ...] = ()  # those that it held when it was lost


@dataclass(slots=True)
class JobHistory:
    per_node: int = 1
    nodes: dict[str, NodeSeen] = field(default_factory=dict)
    seats: list[str] = field(default_factory=list)  # node by position
    milestones: list[Record] = field(default_factory=list)
    resumed: dict[str, Record] = field(default_factory=dict)  # the last one by cause
    went_on: dict[str, float] = field(default_factory=dict)  # when steps were completed again, by cause
    wait: Record | None = None
    drain: Record | None = None
    ended: Record | None = None
    began: float | None = None  # when the first record was written
    trained_since: float | None = None
    last_t: float = 0.0
    generation: str = ""
    cause: str = ""
    fold: JobFold = field(default_factory=JobFold)  # what metrics count
    progress: Record | None = None
    every: int = 1
    protected_step: int | None = None
    bandwidth: Record | None = None
    mesh: Record | None = None
    step_times: Series = field(default_factory=Series)  # seconds by time
    rate: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_RATE))  # time, step
    silent: SilentErrors = field(default_factory=SilentErrors)  # audits of steps, and what they and replicas have found
    recent: deque[Record] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, record: Record) -> None:
        what, t = str(record.get("what")), record.get("t")
        if not isinstance(t, (int, float)):
            return
        if what == "joined" and self.ended is not None:
            self._begin_anew()  # another job in the same folder
        self.began = t if self.began is None else min(self.began, t)
        self.last_t = max(self.last_t, t)
        self.fold.add(record)
        self.silent.add(record)
        if what in BY_NAME and BY_NAME[what].sentence(record):
            self.recent.append(record)  # what the console shows
        if what in _MILESTONES:
            self._add_milestone(what, record)
        handler = getattr(self, f"_on_{what}", None)
        if handler is not None:
            handler(record)
        elif what in _WAITS:
            self.wait = record
        elif what in _ENDS:
            self.ended = record

    @property
    def usual_step_s(self) -> float | None:
        """The median of the step times that are kept."""
        known = sorted(self.step_times.ys)
        return known[len(known) // 2] if known else None

    def node(self, name: str) -> NodeSeen:
        return self.nodes.setdefault(name, NodeSeen(name))

    def ranks_of(self, name: str) -> tuple[int, ...]:
        if name not in self.seats:
            return ()
        first = self.seats.index(name) * self.per_node
        return tuple(range(first, first + self.per_node))

    def _begin_anew(self) -> None:
        fresh = JobHistory(per_node=self.per_node)
        for name in JobHistory.__dataclass_fields__:
            setattr(self, name, getattr(fresh, name))

    def _add_milestone(self, what: str, record: Record) -> None:
        kept = {key: value for key, value in record.items() if key != "seats"}
        self.milestones.append(kept)
        if record.get("cause"):
            self.cause, self.generation = record["cause"], record.get("generation") or self.generation

    def _on_joined(self, record: Record) -> None:
        node = self.node(record["node"])
        node.spare, node.lost, node.left, node.rehearsed = bool(record.get("spare")), None, False, False

    _on_returned = _on_joined

    def _on_machine(self, record: Record) -> None:
        node = self.node(record["node"])
        node.rack, node.memory_bytes = record.get("rack"), record.get("memory_bytes")
        node.link_gbps = record.get("link_gbps")

    def _on_fault(self, record: Record) -> None:
        """Takes note of a fault. One without a rank lost the whole node; one without ranks is a hang, and nothing is
        lost. A coordinator that took over names only the ranks of the nodes that it never heard from."""
        name, ranks = record.get("node"), set(record.get("ranks") or ())
        if ranks and record.get("rank") is None:
            for lost in [name] if name else [each for each in self.seats if ranks >= set(self.ranks_of(each))]:
                node = self.node(lost)
                node.lost, node.last_ranks, node.draining = str(record.get("reason")), self.ranks_of(lost), False
        self.wait = None

    def _on_took_over(self, record: Record) -> None:
        """A spare that was lost together with the coordinator is nowhere else told of. One that follows later joins
        again."""
        for name, node in self.nodes.items():
            if node.spare and not node.left and name not in record["nodes"]:
                node.lost = node.lost or "it did not follow the coordinator that took over"

    def _on_spare_lost(self, record: Record) -> None:
        self.node(record["node"]).lost = str(record.get("reason"))

    def _on_left(self, record: Record) -> None:
        node = self.node(record["node"])
        node.left, node.draining = True, False
        self.drain = None

    def _on_drain(self, record: Record) -> None:
        self.node(record["node"]).draining = True
        self.drain = record

    def _on_drain_failed(self, record: Record) -> None:
        self.node(record["node"]).draining = False
        self.drain = None

    def _on_quarantine_lifted(self, record: Record) -> None:
        self.node(record["node"]).quarantined = None

    def _on_quarantined(self, record: Record) -> None:
        self.node(record["node"]).quarantined = str(record.get("reason"))

    def _on_straggler(self, record: Record) -> None:
        self.node(record["node"]).slow = str(record.get("reason"))

    def _on_straggler_recovered(self, record: Record) -> None:
        self.node(record["node"]).slow = None

    def _on_rehearsed(self, record: Record) -> None:
        name = str(record.get("node") or str(record.get("trainer", "")).rpartition(".")[0])
        if name in self.nodes:
            self.nodes[name].rehearsed = True

    def _on_planned(self, record: Record) -> None:
        self.seats, self.wait = list(record["seats"]), None
        for name in self.seats:
            self.node(name).spare = False

    def _on_go(self, record: Record) -> None:
        self.wait = None
        if self.trained_since is None:
            self.trained_since = record["t"]

    def _on_resumed(self, record: Record) -> None:
        known = self.resumed.get(record["cause"])
        if known is None or known["t"] <= record["t"]:
            self.resumed[record["cause"]] = record

    def _on_capture_interval(self, record: Record) -> None:
        self.every = int(record["every"])

    def _on_protected(self, record: Record) -> None:
        self.protected_step = record.get("step")

    def _on_bandwidth(self, record: Record) -> None:
        self.bandwidth = record

    def _on_mesh(self, record: Record) -> None:
        names, shape = list(map(str, record["names"])), list(map(int, record["shape"]))
        self.mesh = {"names": names, "shape": shape}

    def _on_progress(self, record: Record) -> None:
        """Takes note of progress. Between two of these records the time of a step is known as a mean."""
        if self.trained_since is None:
            return  # the time until the script has come to its first step is no step time
        t, step = float(record["t"]), int(record["step"])
        self.progress = record
        if self.rate and step == self.rate[-1][1]:
            return  # it stands still
        if self.rate and step > self.rate[-1][1] and t > self.rate[-1][0]:
            self.step_times.add(t, (t - self.rate[-1][0]) / (step - self.rate[-1][1]))
        self.rate.append((t, step))
        if self.milestones and self.milestones[-1]["what"] == "go":
            self.went_on.setdefault(self.cause, t)

    def _on_step_times(self, record: Record) -> None:
        """Every rank reports the same steps, so the curve takes those of the first rank."""
        if record.get("rank") == 0:
            ends = itertools.accumulate(record["seconds"], initial=record["began"])
            for end, seconds in zip(itertools.islice(ends, 1, None), record["seconds"], strict=True):
                self.step_times.add(end, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    cause: str
    kind: str  # fault or drain
    began: float
    ended: float | None  # when every rank had done a new step; None: it is not over, or another fault came first
    reason: str
    node: str | None
    ranks: tuple[int, ...]
    resume_step: int | None
    lost_steps: int
    phases_s: dict[str, float]

    def facts(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "kind": self.kind,
            "began": self.began,
            "seconds": self.ended - self.began if self.ended is not None else None,
            "reason": self.reason,
            "node": self.node,
            "ranks": list(self.ranks[:64]),
            "rank_count": len(self.ranks),
            "resume_step": self.resume_step,
            "lost_steps": self.lost_steps,
            "phases_s": self.phases_s,
        }


def interruptions(history: JobHistory) -> list[Interruption]:
    """Returns the interruptions in order. Those that are over are read as `deadpool show story` reads them."""
    records = sorted([*history.milestones, *history.resumed.values()], key=lambda each: float(each["t"]))
    complete = {each.cause: each for each in recoveries(records)}
    found: dict[str, Interruption] = {}
    for record in records:
        cause = record.get("cause")
        if record["what"] not in ("fault", "handover", "reconfiguration") or not cause or cause in found:
            continue
        known = complete.get(cause)
        found[cause] = _over(known, history.went_on.get(cause)) if known is not None else _under_way(record, records)
    return list(found.values())


def _over(recovery: Recovery, went_on: float | None) -> Interruption:
    """Where the script began anew no rank reports that it has resumed; then `went_on` is when steps were seen."""
    fault = recovery.fault
    return Interruption(
        cause=recovery.cause,
        kind=_kind(fault),
        began=recovery.began,
        ended=recovery.began + recovery.first_step_s if recovery.first_step_s is not None else went_on,
        reason=str(fault.get("reason", "")),
        node=fault.get("node"),
        ranks=tuple(fault.get("ranks", ())),
        resume_step=recovery.resume_step,
        lost_steps=recovery.lost_steps,
        phases_s=recovery.phases_s,
    )


def _under_way(fault: Record, records: Iterable[Record]) -> Interruption:
    own = [each for each in records if each.get("cause") == fault["cause"]]
    plan = next((each for each in own if each["what"] == "planned"), None)
    return Interruption(
        cause=fault["cause"],
        kind=_kind(fault),
        began=began_at(fault),
        ended=None,
        reason=str(fault.get("reason", "")),
        node=fault.get("node"),
        ranks=tuple(fault.get("ranks", ())),
        resume_step=plan["step"] if plan else None,
        lost_steps=plan["lost_steps"] if plan else 0,
        phases_s=_phases_so_far(own, float(fault["t"])),
    )


def _kind(record: Record) -> str:
    return "drain" if record["what"] in ("handover", "reconfiguration") else "fault"


def _phases_so_far(own: list[Record], began: float) -> dict[str, float]:
    """The phases that have ended."""
    at: dict[str, float] = {}
    for record in own:
        at.setdefault(str(record["what"]), float(record["t"]))
    phases, last = {}, began
    for name, milestone in zip(PHASES[1:], MILESTONES[1:], strict=False):
        if milestone not in at:
            break
        phases[name], last = at[milestone] - last, at[milestone]
    return phases
