"""What a fenced job waits for before it can be planned, and for how long."""

from __future__ import annotations

from enum import Enum

from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.silent_nodes import Absences

ISOLATION_TIMEOUTS = 4
"""Beyond the isolation time: to notice that the coordinator is gone, and to end trainers."""


class Awaited(Enum):
    MAJORITY = "majority"
    SPARE = "spare"
    RETURN = "return"  # of a node that only fell silent
    ISOLATION = "isolation"  # of all who ran: until they have ended their trainers by themselves


class Waiting:
    """Said when it begins, not each time that it is looked at."""

    def __init__(self, job: Job, absences: Absences) -> None:
        self._job, self._absences = job, absences
        self.awaited: Awaited | None = None
        self._has_prolonged = False  # for somebody who came at the last moment

    def for_majority(self, now: float) -> None:
        if self._begin(Awaited.MAJORITY, now, self._job.deadlines.node_s):
            reason = "most of the nodes that ran do not answer"
            self._job.out.emit("no_majority", reason=reason, nodes=sorted(self._job.members))

    def for_spare(self, reason: str, now: float) -> None:
        patience_s = self._job.deadlines.spare_wait_s
        if self._begin(Awaited.SPARE, now, patience_s):
            self._job.out.emit("awaiting_spare", reason=reason, deadline_s=patience_s)

    def for_return(self, reason: str, now: float) -> None:
        """Who only fell silent may be alive, and have what nobody else has."""
        patience_s = self._job.deadlines.return_s
        if self._begin(Awaited.RETURN, now, patience_s):
            hoped_for = ", ".join(self._absences.hoped_for)
            self._job.out.emit("awaiting_return", reason=f"{reason}; {hoped_for} may come back", deadline_s=patience_s)

    def for_isolation(self, now: float) -> None:
        """Nobody who ran is at rest: a plan without them could make two jobs of one. Either one of them comes back, or
        they have found themselves alone when this time is up; their clocks need not agree with ours in every second."""
        patience_s = self._job.settings.isolation_s + ISOLATION_TIMEOUTS * self._job.deadlines.node_s
        if self._begin(Awaited.ISOLATION, now, patience_s):
            names = ", ".join(self._absences.hoped_for)
            reason = f"{names} may still run, and nobody who ran with them has stopped"
            self._job.out.emit("awaiting_return", reason=reason, deadline_s=patience_s)

    def _begin(self, awaited: Awaited, now: float, patience_s: float) -> bool:
        """False: it has been waited for that before."""
        if self._job.phase is Phase.WAITING and self.awaited is awaited:
            return False
        self.awaited, self._has_prolonged = awaited, False
        self._job.enter(Phase.WAITING, now, patience_s)
        return True

    @property
    def is_forsaken(self) -> bool:
        """Nobody at all is heard, and some only fell silent: it may be we who are cut off, and they who go on."""
        job = self._job
        return not job.members and job.phase is Phase.WAITING and self.awaited is Awaited.RETURN

    def prolong(self, now: float) -> bool:
        """Time is up, but somebody has come and is still coming to rest: it may be what was waited for. Once only."""
        if self._has_prolonged:
            return False
        self._has_prolonged = True
        self._job.enter(Phase.WAITING, now, self._job.deadlines.fence_s)
        return True
