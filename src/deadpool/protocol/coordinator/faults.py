"""What follows from a fault, whatever it was: a name for it, blame, and a fence."""

from __future__ import annotations

from deadpool.protocol.coordinator.fencing import Fencing
from deadpool.protocol.coordinator.hang import Hangs
from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.planning import Planning
from deadpool.protocol.coordinator.quarantine import Quarantine
from deadpool.protocol.coordinator.resumption import Resumption
from deadpool.protocol.coordinator.retry_limit import Setback, Setbacks


class Faults:
    def __init__(
        self,
        job: Job,
        *,
        setbacks: Setbacks,
        hangs: Hangs,
        quarantine: Quarantine,
        fencing: Fencing,
        planning: Planning,
        resumption: Resumption,
    ) -> None:
        self._job, self._setbacks, self._hangs, self._quarantine = job, setbacks, hangs, quarantine
        self._fencing, self._planning, self._resumption = fencing, planning, resumption

    def arise(
        self,
        now: float,
        *,
        reason: str,
        ranks: list[int],
        node: str | None = None,
        rank: int | None = None,
        blamed: str | None = None,
    ) -> None:
        """`ranks` are lost. None, if the job hangs: whoever is at fault for it will not come to rest."""
        job = self._job
        if job.released:
            job.out.emit("lost_after_release", node=node, rank=rank, reason=reason, ranks=ranks)
            self._resumption.lost_after_release(ranks, now)
            return
        job.name_cause("fault")
        job.out.emit("fault", node=node, rank=rank, reason=reason, ranks=ranks, during=job.phase.value)
        # Nodes lost while their neighbours' loss is being dealt with are the same disaster, not one more attempt.
        setback = Setback(cause=job.cause, reason=reason, node=node, ranks=tuple(ranks))
        if self._setbacks.is_futile(setback, one_more=rank is not None or job.phase is Phase.RUNNING):
            self._give_up()
        if ranks:
            self._hangs.clear()
        else:
            self._hangs.suspect()
        if blamed is not None:
            self._quarantine.blame(blamed, reason, now)
        self._fencing.fence(now)

    def _give_up(self) -> None:
        """Going on would be a loop. Everybody is stopped once more, for what they have to be kept."""
        if self._planning.given_up is None:
            self._planning.given_up = reason = self._setbacks.report()
            self._job.out.emit("no_progress", step=self._setbacks.step, reason=reason, **self._setbacks.facts())
