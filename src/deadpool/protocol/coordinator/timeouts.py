"""What did not happen in time, and what is done about it."""

from __future__ import annotations

from deadpool.protocol.coordinator.ending import Ending
from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.membership import Membership
from deadpool.protocol.coordinator.planning import Planning
from deadpool.protocol.coordinator.resumption import Resumption
from deadpool.protocol.coordinator.silence import SilenceWatch
from deadpool.protocol.coordinator.silent_nodes import Absences
from deadpool.protocol.coordinator.waiting import Awaited, Waiting


class Overdue:
    def __init__(
        self,
        job: Job,
        *,
        absences: Absences,
        waiting: Waiting,
        membership: Membership,
        planning: Planning,
        resumption: Resumption,
        ending: Ending,
    ) -> None:
        self._job, self._absences, self._waiting = job, absences, waiting
        self._membership, self._planning, self._resumption, self._ending = membership, planning, resumption, ending
        self._silence = SilenceWatch(job.deadlines.node_s)

    def earliest_silence(self) -> float | None:
        return self._silence.earliest(self._job.members)

    def excuse(self, seconds: float) -> None:
        """Rule 20, timeouts: nobody is blamed for a silence that was ours."""
        for member in self._job.members.values():
            member.heard += seconds
        self._silence.excuse()
        if self._job.phase_deadline is not None:
            self._job.phase_deadline += seconds

    def look(self, now: float) -> None:
        job = self._job
        silent = self._silence.look(job.members, now)
        for node in silent:
            self._absences.fell_silent(node)
        self._membership.lose_each(silent, f"was silent for {job.deadlines.node_s:g} s", now)
        if job.phase_deadline is not None and now >= job.phase_deadline and not silent:
            self._look_at_phase(now)

    def _look_at_phase(self, now: float) -> None:
        job, lose_each = self._job, self._membership.lose_each
        match job.phase:
            case Phase.FENCING:
                lose_each(job.unfrozen, "did not unwind in time", now)
            case Phase.WAITING:
                self._waited_in_vain(now)
            case Phase.PREPARING:
                lose_each(self._resumption.late_nodes("prepared"), "did not prepare in time", now)
            case Phase.CONNECTING:
                lose_each(self._resumption.late_nodes("connected"), "did not connect in time", now)
            case Phase.SALVAGING:
                self._ending.close()
            case _:
                job.phase_deadline = None

    def _waited_in_vain(self, now: float) -> None:
        job = self._job
        if not job.has_majority:
            job.stay_in(Phase.RESIGNED)
        elif late := job.unfrozen:
            if not self._waiting.prolong(now):
                self._membership.lose_each(late, "did not unwind in time", now)
        elif self._waiting.awaited in (Awaited.RETURN, Awaited.ISOLATION):
            self._absences.give_up()
            self._planning.plan(now)
        else:
            self._ending.end("no spare node joined in time; start one with: deadpool agent --join", failed=True)
