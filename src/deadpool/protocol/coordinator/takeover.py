"""Taking over from a coordinator that is gone (rule 18, one coordinator per term). What there is to take over is
`recovered_view.py`'s to say."""

from __future__ import annotations

from deadpool.protocol.coordinator.ending import Ending
from deadpool.protocol.coordinator.fault_history import Conduct
from deadpool.protocol.coordinator.faults import Faults
from deadpool.protocol.coordinator.hang import Hangs
from deadpool.protocol.coordinator.interval import Pace
from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.recovered_view import RecoveredView
from deadpool.protocol.coordinator.rehearsals import Rehearsals
from deadpool.protocol.coordinator.resumption import Resumption
from deadpool.protocol.coordinator.silent_nodes import Absences


class Takeover:
    def __init__(
        self,
        job: Job,
        *,
        pace: Pace,
        conduct: Conduct,
        absences: Absences,
        hangs: Hangs,
        rehearsals: Rehearsals,
        faults: Faults,
        resumption: Resumption,
        ending: Ending,
    ) -> None:
        self._job, self._pace, self._conduct, self._absences, self._hangs = job, pace, conduct, absences, hangs
        self._rehearsals, self._faults, self._resumption, self._ending = rehearsals, faults, resumption, ending

    def enter_upon(self, recovered_view: RecoveredView, now: float) -> None:
        job = self._job
        job.members = {member.node: member for member in recovered_view.members(now)}
        job.out.generation, job.out.cause = recovered_view.generation, f"term-{job.term}"
        job.cause_count = recovered_view.newest.n  # no cause has been called by a higher number
        job.quorum.electorates = recovered_view.electorates
        job.commits.take_over(recovered_view)
        self._pace.fence()
        job.out.emit("took_over", term=job.term, running=recovered_view.is_running, nodes=sorted(job.members))
        for member in job.members.values():
            if member.quarantined:
                self._conduct.quarantine(member.node, "found by the coordinator before")
        for node in recovered_view.unseated:
            job.out.drop(node)  # it will call again, and is taken back then
        if recovered_view.is_running:
            self._carry_on(recovered_view, now)
        else:
            self._take_up_pieces(recovered_view, now)

    def _carry_on(self, recovered_view: RecoveredView, now: float) -> None:
        """Nobody has to stop: all are where they were left."""
        self._job.seats = tuple(node for node in recovered_view.seats if node is not None)
        self._absences.end(self._job.seats)
        self._resumption.run(now, from_go=False)
        self._ending.end_if(self._job.commits.take_up())
        self._rehearsals.take_over(list(self._job.members.values()))

    def _take_up_pieces(self, recovered_view: RecoveredView, now: float) -> None:
        """Somebody is lost, or a recovery was under way: what is there is fenced, and planned with."""
        lost = [position for position, node in enumerate(recovered_view.seats) if node is None]
        self._job.phase = Phase.PREPARING
        reason = f"nothing was heard from positions {', '.join(map(str, lost))}" if lost else "a recovery was cut short"
        for position in lost:
            self._absences.fell_silent(f"whoever sat at position {position}")
        ranks = [rank for position in lost for rank in self._job.layout.ranks_at(position)]
        self._faults.arise(now, reason=reason, ranks=ranks)
        self._hangs.clear()
