"""A job that has shrunk grows again as soon as spares are there: they get carried ranks as from a node that leaves."""

from __future__ import annotations

from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.leaving.drain import Drain, Drains
from deadpool.protocol.coordinator.recovery.seats import seats_for
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorPart
from deadpool.protocol.features.shrink.coordinator.vacancies import carried_in


class Growth(CoordinatorPart):
    def __init__(self, core: CoordinatorCore) -> None:
        self._job: JobState = core.job
        self._drains: Drains = core.drains
        self._from = 0.0  # no attempt before this time

    def advance(self, now: float) -> None:
        if not self._job.is_full and self._drains.current is None and now >= self._from:
            self._grow_if_possible(now)

    def _grow_if_possible(self, now: float) -> None:
        """Grows as soon as a plan would carry fewer ranks, and the job is protected meanwhile."""
        job = self._job
        spares = [m for m in job.members.values() if m.is_spare and not m.quarantined and m.trainers]
        if not spares or not job.can_drain or not job.commits.protected:
            return
        carried = carried_in(job.plan.seating if job.plan is not None else None)
        wanted = carried_in(seats_for(job.view()))
        self._from = now + job.settings.heartbeat_s  # a view of thousands of nodes takes time
        if len(wanted) < len(carried):
            self._from = now + job.deadlines.prepare_s  # if it fails
            self._begin(min(set(carried) - set(wanted)), now)

    def _begin(self, position: int, now: float) -> None:
        self._drains.begin_moves(
            Drain(
                self._job.seats[position],
                position,
                "a spare can take ranks that it carries",
                deadline=now + self._job.deadlines.prepare_s,
                stays=True,
            )
        )
