"""When a fenced job is planned, and what is done where it cannot be. The plan itself is `planner.py`'s."""

from __future__ import annotations

from deadpool.protocol.coordinator.ending import Ending
from deadpool.protocol.coordinator.hang import Hangs
from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.planner import Blueprint, NoPlan, plan
from deadpool.protocol.coordinator.resumption import Resumption
from deadpool.protocol.coordinator.silent_nodes import Absences
from deadpool.protocol.coordinator.waiting import Waiting


class Planning:
    def __init__(
        self, job: Job, *, waiting: Waiting, absences: Absences, hangs: Hangs, resumption: Resumption, ending: Ending
    ) -> None:
        self._job, self._waiting, self._absences, self._hangs = job, waiting, absences, hangs
        self._resumption, self._ending = resumption, ending
        self.given_up: str | None = None  # why the job is not to be planned again
        self._roll: list[str] = []  # who had not acknowledged the fence when everybody was last looked at

    def maybe_plan(self, now: float) -> None:
        """Only from frozen inventories (rule 13, a plan needs every rank's own seal), and only with a majority
        (rule 18, one coordinator per term)."""
        if not self._is_frozen():
            return
        if self._job.phase is Phase.FENCING:
            self._job.out.emit("fenced")
            self._hangs.acquit()
        if not self._job.has_majority:
            self._waiting.for_majority(now)
        elif self.given_up is not None:
            self._ending.abandon(self.given_up, now)
        else:
            self.plan(now)

    def _is_frozen(self) -> bool:
        """Everybody has acknowledged. The roll is called on from where it last stopped: there may be thousands."""
        members = self._job.members
        while self._roll:
            awaited = members.get(self._roll[-1])
            if awaited is not None and awaited.inventory is None:
                return False
            self._roll.pop()
        self._roll = self._job.unfrozen
        return not self._roll

    def plan(self, now: float) -> None:
        match plan(self._job.view(), self._job.changes_by):
            case NoPlan(missing_nodes=missing, reason=reason) if missing:
                self._waiting.for_spare(reason, now)
            case NoPlan(reason=reason) if self._absences.hoped_for:
                self._waiting.for_return(reason, now)
            case NoPlan(reason=reason, ranks=ranks):
                self._job.out.emit("no_plan", reason=reason, ranks=list(ranks))
                self._ending.abandon(reason, now)
            case Blueprint() if self._absences.all_may_run:
                self._waiting.for_isolation(now)
            case Blueprint() as blueprint:
                self._resumption.carry_out(blueprint, now)
