"""What did not happen in time: nodes that are silent, phases that last too long."""

from __future__ import annotations

from collections.abc import Mapping

from deadpool.protocol.causes import EndCause
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leaving.ending import Ending
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.membership.membership import Membership
from deadpool.protocol.coordinator.recovery.planning import Planning
from deadpool.protocol.coordinator.recovery.resumption import Resumption


class Timeouts:
    def __init__(
        self, job: JobState, membership: Membership, planning: Planning, resumption: Resumption, ending: Ending
    ) -> None:
        self._job, self._membership, self._planning = job, membership, planning
        self._resumption, self._ending = resumption, ending
        self._heartbeats = HeartbeatTimeout(job.deadlines.node_s)

    def next_silence(self) -> float | None:
        return self._heartbeats.next_check(self._job.members)

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: no node is blamed for a silence that was the coordinator's own."""
        self._job.discount_stall(seconds)
        self._heartbeats.look_again()

    def check(self, now: float) -> None:
        job = self._job
        silent = self._heartbeats.silent_nodes(job.members, now)
        for node in silent:
            job.silent.fell_silent(node)
        self._membership.lose_each(silent, f"was silent for {job.deadlines.node_s:g} s", now)
        if job.phase_deadline is not None and now >= job.phase_deadline and not silent:
            self._end_phase(now)

    def _end_phase(self, now: float) -> None:
        job, lose_each = self._job, self._membership.lose_each
        match job.phase:
            case Phase.FENCING:
                lose_each(job.unfrozen, "did not unwind in time", now)
            case Phase.WAITING:
                self._end_wait(now)
            case Phase.PREPARING:
                self._lose_late(self._resumption.late_to_prepare(), "did not prepare in time", now)
            case Phase.CONNECTING:
                self._lose_late(self._resumption.late_to_connect(), "did not connect in time", now)
            case Phase.SALVAGING:
                self._ending.end_salvage()
            case _:
                job.enter_without_deadline(job.phase)

    def _lose_late(self, late: Mapping[str, list[int]], what: str, now: float) -> None:
        for node, ranks in late.items():
            names = ", ".join(map(str, ranks))
            self._membership.lose_each([node], f"{what}; waited for rank {names}", now)

    def _end_wait(self, now: float) -> None:
        job = self._job
        if not job.has_majority:
            job.enter_without_deadline(Phase.RESIGNED)
        elif late := job.unfrozen:
            if not self._planning.wait.prolong(now):
                self._membership.lose_each(late, "did not unwind in time", now)
        elif self._planning.wait.is_for_silent_nodes:
            self._planning.plan_without_silent_nodes(now)
        else:
            reason = "no spare node joined in time; start one with: deadpool agent --join"
            self._ending.end(EndCause.NO_SPARE, reason, failed=True)


class HeartbeatTimeout:
    """Which nodes have said nothing for too long. Not every node is looked at after each message: no node falls silent
    before the one that was heard longest ago, as of the last look, could have."""

    def __init__(self, node_s: float) -> None:
        self._node_s = node_s
        self._none_before: float | None = None

    def look_again(self) -> None:
        """Every node was heard later than it seemed."""
        self._none_before = None

    def next_check(self, members: Mapping[str, Member]) -> float | None:
        """Returns when it is worth looking again."""
        if not members:
            self._none_before = None
        elif self._none_before is None:
            self._none_before = min(member.heard for member in members.values()) + self._node_s
        return self._none_before

    def silent_nodes(self, members: Mapping[str, Member], now: float) -> list[str]:
        self._none_before = None
        return [member.node for member in members.values() if now >= member.heard + self._node_s]
