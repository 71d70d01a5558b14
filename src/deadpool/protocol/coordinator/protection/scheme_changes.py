"""How the snapshots of a running job are protected: what a person may ask for, and what follows from a change.

A person may ask for any scheme that the job can have. A coordinator that takes over goes on with the scheme of the
newest plan.
"""

from __future__ import annotations

from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.leaving.drain import Drains
from deadpool.protocol.schemes import Scheme

NO_CHOICE = (
    "the job may not choose, for it was started without rs(K,M) in --protect-at-most: give --scheme copies=N or rs(K,M)"
)


class SchemeChanges:
    def __init__(self, job: JobState, drains: Drains) -> None:
        self._job, self._drains = job, drains

    def refusal(self, scheme: Scheme) -> str | None:
        """Why snapshots cannot be protected in this way; None: they can."""
        job, losses = self._job, scheme.losses
        if losses >= job.layout.positions:
            return f"{scheme} needs more than the {job.layout.positions} nodes of this job: give a smaller N or M"
        if not losses and job.layout.positions > 1:
            return f"{scheme} keeps no copy on another node: give copies=1 or more"
        if scheme.in_groups and (refusal := job.redundancy.refusal(scheme, is_full=job.is_full)) is not None:
            return refusal
        if not job.is_full and scheme.copies >= (left := len(set(job.seats))):
            return f"{scheme} needs more nodes than the {left} that are left: wait until the job has grown again"
        return None

    def use(self, scheme: Scheme, why: str, now: float) -> bool:
        """The scheme counts from the next plan on. If nothing else is under way, all ranks stop at one version for it
        at once, and the result is True; otherwise the next recovery or drain is that plan. Groups have no holders of
        one rank: where copies return, a node is held once more only if that is decided anew."""
        job = self._job
        if scheme == job.scheme:
            return False
        reason = f"snapshots are protected by {scheme} instead of {job.scheme}"
        job.scheme = scheme
        if scheme.in_groups:
            job.held_once_more.clear()
        job.out.emit("scheme", scheme=str(scheme), reason=why)
        if not (job.can_drain and self._drains.current is None and job.commits.protected):
            return False
        self._drains.begin_reconfiguration(reason, now)
        return True

    @property
    def is_outstanding(self) -> bool:
        """Snapshots are not protected as they are to be: a reconfiguration has failed, or could not begin."""
        return self._job.commits.placement.scheme != self._job.scheme
