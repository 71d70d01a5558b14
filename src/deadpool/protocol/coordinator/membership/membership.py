"""Which nodes belong to the job, and which have been silent too long.

`Timeouts` and `HeartbeatTimeout`: what did not happen in time: nodes that are silent, phases that last too long.

`Membership`: Nodes join, are lost, and leave. A node that is not a member is fenced out: nothing that it says
counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from deadpool.protocol.causes import EndCause, FaultKind
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leaving.ending import Ending
from deadpool.protocol.coordinator.membership.members import Member, natural_order
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.recovery.fault_history import FaultHistory, ObservedFault
from deadpool.protocol.coordinator.recovery.faults import Faults
from deadpool.protocol.coordinator.recovery.planning import Planning
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.coordinator.recovery.resumption import Resumption
from deadpool.protocol.identity import FOUNDING, Generation
from deadpool.protocol.messages import Fence, Inventory, Join, JoinRefused, Release, Shutdown, Welcome


class Membership:
    def __init__(
        self,
        job: JobState,
        history: FaultHistory,
        rehearsals: Rehearsals,
        faults: Faults,
        planning: Planning,
        ending: Ending,
        fallback: Fallback,
    ) -> None:
        self._job, self._history, self._rehearsals = job, history, rehearsals
        self._faults, self._planning, self._ending, self._fallback = faults, planning, ending, fallback

    # --- nodes join ---------------------------------------------------------------------------------------------------

    def join(self, node: str, join: Join, now: float) -> None:
        job, out = self._job, self._job.out
        if node in job.members:
            out.send(node, JoinRefused(reason=f"a node named {node} is in the job already"))
            out.drop(node)
            return
        job.add(self._make_member(node, join, now))
        out.emit("joined", node=node, spare=join.spare or job.phase is not Phase.FORMING)
        out.send(node, Welcome(term=job.term, settings=job.settings, by=job.name))
        if job.phase is Phase.FORMING:
            self._form_if_complete(now)  # no warning about spares yet: no node is seated
            return
        job.warn_if_no_spare()
        if job.released and join.footing.planned == job.generation:
            # Rule 33 (a fence takes the release back): no generation follows that a fence could begin. It may not have
            # heard the release, and a rank of it that ends now has ended well.
            out.send(node, Release(generation=job.generation))
        elif job.is_stopping or (job.phase is not Phase.SALVAGING and not join.footing.is_new):
            # It has come while the others are stopped, or ran on without them.
            out.send(node, Fence(generation=job.generation, cause=job.cause))

    def _make_member(self, node: str, join: Join, now: float) -> Member:
        member = Member(node, join.incarnation, join.data, join.spare, heard=now, rack=join.rack)
        member.has_run = not join.footing.is_new
        member.cut_off = node in self._job.cut_off
        member.quarantined = join.footing.quarantined or self._history.quarantine.why(node) is not None
        return member

    def _form_if_complete(self, now: float) -> None:
        """The first generation needs no fence: no node holds anything yet."""
        job, positions = self._job, self._job.layout.positions
        if len(job.members) < positions:
            return
        ready = sorted((m for m in job.members.values() if not m.spare), key=lambda m: natural_order(m.node))
        if len(ready) < positions:
            return
        for position, member in enumerate(ready[:positions]):
            member.position, member.has_run = position, True
        for member in job.members.values():
            member.inventory = Inventory()
        job.begin_generation(Generation(job.term, FOUNDING), cause="start")
        job.quorum.pass_to(job.generation, [member.voter for member in ready[:positions]])
        self._rehearsals.take_recordings(self._fallback.recordings)
        self._planning.plan(now)

    # --- nodes are lost, or leave -------------------------------------------------------------------------------------

    def lose_node(self, node: str, reason: str, now: float, *, at_fault: bool = True) -> None:
        job = self._job
        member = job.remove(node)
        if member is None:
            return
        job.out.drop(node)
        self._rehearsals.forget(node)
        job.commits.forget(node)
        self._ending.salvage.on_node_lost(node)
        if job.phase is Phase.SALVAGING:
            self._ending.end_salvage_if_done()
        elif member.position is None:
            job.out.emit("spare_lost", node=node, reason=reason)
            self._continue_without(now)
        else:
            ranks = member.ranks(job.layout)
            blamed = node if at_fault else None
            fault = ObservedFault(
                kind=FaultKind.NODE, reason=reason, ranks=ranks, node=node, blamed=blamed, rack=member.rack
            )
            self._faults.recover(fault, now)

    def lose_each(self, nodes: list[str], what: str, now: float) -> None:
        """A node that did not do its part in time counts as lost. Each one is a fault; the last one leads to a plan."""
        for node in nodes:
            if self._job.phase is not Phase.ENDED:  # the loss of one node can end the job
                self.lose_node(node, f"node {node} {what}", now)

    def on_unavailable(self, member: Member, reason: str, now: float) -> None:
        """Handles a node whose machine serves another job (rule 31, one job per machine). Whether or not a plan counted
        on it, it is no fault of the machine."""
        if member.position is None and self._job.phase is not Phase.SALVAGING:
            self.dismiss(member, reason, now)
        else:
            self.lose_node(member.node, f"node {member.node} is not available: {reason}", now, at_fault=False)

    def dismiss(self, member: Member, reason: str, now: float) -> None:
        """The node leaves on purpose, and has nothing that another node needs."""
        node, out = member.node, self._job.out
        self._job.remove(node)
        self._rehearsals.forget(node)
        out.emit("left", node=node, reason=reason)
        out.send(node, Shutdown(reason=f"node {node} leaves: {reason}", failed=False))
        self._continue_without(now)

    def _continue_without(self, now: float) -> None:
        """The spare that is gone may have been the last node that a fence waited for."""
        self._job.warn_if_no_spare()
        if self._job.is_stopping:
            self._planning.plan_when_frozen(now)


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
