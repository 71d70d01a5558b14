"""Which node is given no more ranks, and when it cannot be helped. What speaks against one is kept by `fault_history.py`."""

from __future__ import annotations

from deadpool.protocol.coordinator.fault_history import Conduct
from deadpool.protocol.coordinator.job import Job
from deadpool.protocol.coordinator.recorded_collectives import RecordingCache


class Quarantine:
    def __init__(self, job: Job, conduct: Conduct, recordings: RecordingCache) -> None:
        self._job, self._conduct, self._recordings = job, conduct, recordings

    def blame(self, node: str, reason: str, now: float) -> None:
        """At the fence: whoever is quarantined has no seat in the plan that follows, unless nobody else is left."""
        conduct, out = self._conduct, self._job.out
        conduct.blame(node, reason, now)
        member, charge = self._job.members.get(node), conduct.why(node) or conduct.charge(node)
        if charge is None or (member is None and conduct.is_quarantined(node)):
            return
        if member is not None and not (self._job.has_healthy_spare and self._job.has_majority_without(member)):
            out.emit("not_quarantined", node=node, reason=charge)
            return
        conduct.quarantine(node, charge)
        out.emit("quarantined", node=node, reason=charge)
        if member is not None:
            member.quarantined, member.position = True, None
            self._recordings.forget(node)
