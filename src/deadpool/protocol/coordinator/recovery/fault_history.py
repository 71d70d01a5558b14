"""What went wrong so far, and what follows from it: quarantine for a node, the end for a job that gets nowhere.

Both are kept apart from `faults.py`, because fences and plans look at them too, and come after a fault.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from deadpool.protocol.causes import EndCause, FaultKind
from deadpool.protocol.coordinator.commits.commits import Commits
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.protection.failure_rates import FailureRates
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals

RETRIES = 5
"""Recoveries in a row without one new committed version, after which the job ends: it would repeat them for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFault:
    kind: FaultKind
    reason: str  # for people
    ranks: tuple[int, ...]  # that are lost; none, if the job hangs
    node: str | None = None
    rank: int | None = None  # whose trainer was lost, where the node was not
    blamed: str | None = None  # a node for whose quarantine it counts
    rack: str | None = None  # of that node
    convicted: bool = False  # the node is quarantined at once, however few its faults are
    since_s: float = 0.0  # it happened so long before it was seen
    cause: str = ""  # the name that the job gave it

    @property
    def text(self) -> str:
        where = f"{_named('rank', self.ranks)}{f' on {self.node}' if self.node else ''}: " if self.ranks else ""
        return where + self.reason


class FaultHistory:
    def __init__(self, job: JobState, rehearsals: Rehearsals) -> None:
        self._job = job
        self.quarantine = Quarantine(job, rehearsals)
        self.retries = RetryLimit(job.commits)
        self.rates = FailureRates()

    def blame(self, fault: ObservedFault, now: float) -> None:
        """A node that could not help it, since its machine serves another job or no source gave it a snapshot, is not
        blamed."""
        if fault.blamed is not None:
            self._job.last_blamed = fault.blamed
            self.rates.note(fault.blamed, fault.rack, fault.kind, now)
            self.quarantine.blame(fault.blamed, fault.reason, now, at_once=fault.convicted)

    def blame_hung_rank(self, node: str, rack: str | None, rank: int, found: str, now: float) -> None:
        self._job.last_blamed = node
        self.retries.name_hung_rank(node, rank, found)
        self.rates.note(node, rack, FaultKind.HANG, now)
        self.quarantine.blame(node, f"rank {rank} hung: {found}", now)


# --- one node ---------------------------------------------------------------------------------------------------------


class Quarantine:
    """Nodes that fail again and again.

    A quarantined node keeps serving the copies that it has. It is given ranks, and with them the copies of others, only
    where no other node is left: a job on a bad node is better than none. It stays quarantined under its name until the
    job ends.
    """

    def __init__(self, job: JobState, rehearsals: Rehearsals) -> None:
        self._job, self._rehearsals = job, rehearsals
        self._faults: dict[str, list[tuple[float, str]]] = {}  # node -> when and why
        self._quarantined: dict[str, str] = {}  # node -> why

    def why(self, node: str) -> str | None:
        """Why the node is quarantined; None: it is not."""
        return self._quarantined.get(node)

    def add(self, node: str, reason: str) -> None:
        self._quarantined[node] = reason

    def lift(self, node: str) -> None:
        """What the node was quarantined for was not its fault."""
        if self._quarantined.pop(node, None) is not None:
            self._faults.pop(node, None)
            self._job.out.emit("quarantine_lifted", node=node)
            if (member := self._job.members.get(node)) is not None:
                member.quarantined = False

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: the coordinator itself did not run for so long."""
        self._faults = {n: [(at + seconds, why) for at, why in faults] for n, faults in self._faults.items()}

    def blame(self, node: str, reason: str, now: float, *, at_once: bool = False) -> None:
        """For a trainer that died or hung there, for a broken device, or for the loss of the node itself. Called at the
        fence: a quarantined node has no seat in the plan that follows, unless no other node is left."""
        job, out = self._job, self._job.out
        self._note(node, reason, now)
        member, charge = job.members.get(node), self.why(node) or (reason if at_once else self._too_many_faults(node))
        if charge is None or (member is None and node in self._quarantined):
            return
        if member is not None and not (job.has_healthy_spare and job.has_majority_without(member)):
            out.emit("not_quarantined", node=node, reason=charge)
            return
        self.add(node, charge)
        out.emit("quarantined", node=node, reason=charge)
        if member is not None:
            member.quarantined, member.position = True, None
            self._rehearsals.forget(node)

    def _note(self, node: str, reason: str, now: float) -> None:
        faults = [*self._faults.get(node, []), (now, reason)]
        self._faults[node] = [(at, why) for at, why in faults if now - at <= self._job.fault_limit.within_s]

    def _too_many_faults(self, node: str) -> str | None:
        """The faults of this node, if they are too many."""
        faults, limit = self._faults.get(node, []), self._job.fault_limit
        if not limit.faults or len(faults) < limit.faults:
            return None
        return f"{len(faults)} faults within {limit.within_s:g} s, the last one: {faults[-1][1]}"


# --- the job ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedError:
    """An error of the script or its device that is not to be tried again as it is."""

    text: str
    only_on_this_node: bool  # so another node may do


class RetryLimit:
    """The faults since a version was last committed."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._commit_count = 0  # as of the last fault
        self._retries = 0
        self._faults: list[ObservedFault] = []
        self._error: tuple[str, str] | None = None  # which error, on which node
        self.given_up: str | None = None  # why the job is not to be planned again
        self.end_cause = EndCause.NO_PROGRESS  # the same as a value

    def is_exceeded_by(self, fault: ObservedFault, *, one_more: bool) -> bool:
        """Counts a fault, and tells whether the limit is exceeded. If `one_more` is set the fault is a retry of its
        own. A node that is lost in a recovery is part of the same retry, unless it is the same node again: it has come
        back then, and this could go on for ever."""
        self._forget_before_commit()
        again = fault.node is not None and any(fault.node == earlier.node for earlier in self._faults)
        self._retries += one_more or again
        self._faults.append(fault)
        return self._retries > RETRIES

    def give_up(self) -> None:
        self.given_up = self._report()

    def give_up_for(self, cause: EndCause, reason: str) -> None:
        """The job ends at the next fence, for what was found elsewhere."""
        self.end_cause, self.given_up = cause, reason

    def name_hung_rank(self, node: str, rank: int, found: str) -> None:
        """Names the rank that is at fault for the hang that was the last fault."""
        if self._faults and not self._faults[-1].ranks:
            hang = self._faults[-1]
            self._faults[-1] = replace(hang, node=node, ranks=(rank,), reason=f"hung, {found}")

    def on_error(self, error: str, node: str) -> RepeatedError | None:
        """An error before the first snapshot, or the same error once more, is a bug of the script and no accident."""
        self._forget_before_commit()
        before, self._error = self._error, (error, node)
        if self._commits.permit.watermark is None:
            return RepeatedError(text="before its first snapshot", only_on_this_node=False)
        if before is not None and before[0] == error:
            return RepeatedError(text="again in the same way", only_on_this_node=before[1] == node)
        return None

    def _report(self) -> str:
        """Tells the people who have to find out why: which faults, which ranks, what to do now."""
        hits = Counter(rank for fault in self._faults for rank in fault.ranks)
        often = [rank for rank, count in sorted(hits.items()) if count > 1]
        suspects = f"; hit more than once: {_named('rank', often)}" if often else ""
        counted = Counter(fault.text for fault in self._faults).items()
        faults = "; ".join(f"{count} times: {text}" if count > 1 else text for text, count in counted)
        return (
            f"no progress: step {self.step} was begun again {RETRIES} times, and no version after it was "
            f"completed; faults: {faults}{suspects}; what now: read these ranks' logs, mend what fails there or leave "
            "the node out, and start again"
        )

    def facts(self) -> dict[str, Any]:
        """The same for the event log."""
        return {
            "faults": [f"{fault.cause}: {fault.text}" for fault in self._faults],
            "ranks": sorted({rank for fault in self._faults for rank in fault.ranks}),
            "nodes": sorted({fault.node for fault in self._faults if fault.node is not None}),
        }

    @property
    def step(self) -> int:
        """The step that is tried again and again."""
        watermark = self._commits.permit.watermark
        return watermark.number if watermark is not None else 0

    def _forget_before_commit(self) -> None:
        if self._commits.count != self._commit_count:
            self._commit_count = self._commits.count
            self.begin_anew()

    def begin_anew(self) -> None:
        self._retries, self._error = 0, None
        self._faults.clear()


def _named(what: str, numbers: tuple[int, ...] | list[int]) -> str:
    return f"{what}{'s' if len(numbers) != 1 else ''} {', '.join(map(str, numbers))}"
