"""When a fenced job is planned, and what it waits for where it cannot be. The plan itself is made in `planner.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum

from deadpool.protocol.causes import EndCause
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leaving.ending import Ending
from deadpool.protocol.coordinator.membership.hang import HangMonitor
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.recovery.fault_history import FaultHistory
from deadpool.protocol.coordinator.recovery.global_plan import ClusterView, GlobalPlan, NoPlan
from deadpool.protocol.coordinator.recovery.planner import plan
from deadpool.protocol.coordinator.recovery.resumption import Resumption

ISOLATION_TIMEOUTS = 4
"""How many node timeouts are added to the isolation time: nodes have to notice that the coordinator is gone, and to end
their trainers."""


class Planning:
    def __init__(
        self,
        job: JobState,
        history: FaultHistory,
        hang: HangMonitor,
        resumption: Resumption,
        ending: Ending,
        fallback: Fallback,
    ) -> None:
        self._job, self._history, self._hang = job, history, hang
        self._resumption, self._ending, self._fallback = resumption, ending, fallback
        self.wait = Wait(job)
        self.on_frozen: Callable[[], None] = lambda: None  # what optional features have to say before a plan
        self._unfrozen: list[str] = []  # nodes that had not acknowledged the fence when all were last looked at

    def plan_when_frozen(self, now: float) -> None:
        """Every node has acknowledged the fence (rule 13, a plan needs every rank's own seal), and there is a majority
        (rule 18, one coordinator per term)."""
        if not self._is_frozen():
            return
        if self._job.phase is Phase.FENCING:
            self._job.out.emit("fenced")
            self._hang.on_all_at_rest()
        if not self._job.has_majority:
            self.wait.for_majority(now)
        elif self._history.retries.given_up is not None:
            self._ending.abandon(self._history.retries.end_cause, self._history.retries.given_up, now)
        else:
            self.plan(now)

    def _is_frozen(self) -> bool:
        """Every node has acknowledged. Each call goes on where the last one stopped: there may be thousands of
        nodes."""
        members = self._job.members
        while self._unfrozen:
            member = members.get(self._unfrozen[-1])
            if member is not None and member.inventory is None:
                return False
            self._unfrozen.pop()
        self._unfrozen = self._job.unfrozen
        return not self._unfrozen

    def plan(self, now: float) -> None:
        job = self._job
        self.on_frozen()
        match plan(self._view(), job.changes_by):
            case NoPlan(missing_nodes=missing, reason=reason) if missing:
                self.wait.for_spare(reason, now)
            case NoPlan(reason=reason) if job.silent.may_return:
                self.wait.for_return(reason, now)
            case NoPlan(reason=reason, ranks=ranks):
                job.out.emit("no_plan", reason=reason, ranks=list(ranks))
                self._ending.abandon(EndCause.COPIES_LOST, reason, now)
            case GlobalPlan() if job.silent.all_may_run:
                self.wait.for_isolation(now)
            case GlobalPlan() as chosen:
                self._resumption.carry_out(chosen, now)

    def _view(self) -> ClusterView:
        """What is kept outside of memory counts only once no node can come back with what is missing: it is older. A
        job that never committed anything begins with it at once."""
        view = self._job.view()
        if self._job.silent.may_return and view.committed and view.watermark is not None:
            return view
        return dataclasses.replace(view, fallback=self._fallback.newest)

    def plan_without_silent_nodes(self, now: float) -> None:
        """Plans without the nodes that did not come back in time."""
        self._job.silent.give_up()
        self.plan(now)


class Awaited(Enum):
    MAJORITY = "majority"
    SPARE = "spare"
    RETURN = "return"  # of a node that only fell silent
    ISOLATION = "isolation"  # of all nodes that ran: until they have ended their trainers by themselves


class Wait:
    """What a fenced job waits for. It is reported when the wait begins, and not at every look."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self._awaited: Awaited | None = None
        self._was_prolonged = False

    def for_majority(self, now: float) -> None:
        if self._begin(Awaited.MAJORITY, now, self._job.deadlines.node_s):
            reason = "most of the nodes that ran do not answer"
            self._job.out.emit("no_majority", reason=reason, nodes=sorted(self._job.members))

    def for_spare(self, reason: str, now: float) -> None:
        patience_s = self._job.deadlines.spare_wait_s
        if self._begin(Awaited.SPARE, now, patience_s):
            self._job.out.emit("awaiting_spare", reason=reason, deadline_s=patience_s)

    def for_return(self, reason: str, now: float) -> None:
        """A node that only fell silent may be alive, and have copies that no other node has."""
        patience_s = self._job.deadlines.return_s
        if self._begin(Awaited.RETURN, now, patience_s):
            names = ", ".join(self._job.silent.may_return)
            self._job.out.emit("awaiting_return", reason=f"{reason}; {names} may come back", deadline_s=patience_s)

    def for_isolation(self, now: float) -> None:
        """No node that ran is at rest: a plan without them could make two jobs of one. Either one of them comes back,
        or all have found themselves isolated when this time is over. Clocks need not agree to the second."""
        patience_s = self._job.settings.isolation_s + ISOLATION_TIMEOUTS * self._job.deadlines.node_s
        if self._begin(Awaited.ISOLATION, now, patience_s):
            names = ", ".join(self._job.silent.may_return)
            reason = f"{names} may still run, and no node that ran with them has stopped"
            self._job.out.emit("awaiting_return", reason=reason, deadline_s=patience_s)

    def _begin(self, awaited: Awaited, now: float, patience_s: float) -> bool:
        """False: the job waits for that already."""
        if self._job.phase is Phase.WAITING and self._awaited is awaited:
            return False
        self._awaited, self._was_prolonged = awaited, False
        self._job.enter(Phase.WAITING, now, patience_s)
        return True

    @property
    def is_for_silent_nodes(self) -> bool:
        return self._awaited in (Awaited.RETURN, Awaited.ISOLATION)

    @property
    def is_cut_off(self) -> bool:
        """No node at all is heard, and some only fell silent. It may be this coordinator that is cut off, while they go
        on."""
        job = self._job
        return not job.members and job.phase is Phase.WAITING and self._awaited is Awaited.RETURN

    def prolong(self, now: float) -> bool:
        """Time is up, but a node has come and is still coming to rest: it may be what was waited for. Once only."""
        if self._was_prolonged:
            return False
        self._was_prolonged = True
        self._job.enter(Phase.WAITING, now, self._job.deadlines.fence_s)
        return True
