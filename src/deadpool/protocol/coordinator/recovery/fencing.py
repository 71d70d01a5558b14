"""The end of a generation: every node stops its ranks and reports what it has."""

from __future__ import annotations

from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leaving.drain import Drains
from deadpool.protocol.coordinator.membership.heartbeats import RunMonitor
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.recovery.fault_history import FaultHistory
from deadpool.protocol.coordinator.recovery.planning import Planning
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.messages import Fence, FenceAck, Inventory, Needed, Plan
from deadpool.protocol.quorum import Changes


class Fencing:
    def __init__(
        self,
        job: JobState,
        monitor: RunMonitor,
        drains: Drains,
        rehearsals: Rehearsals,
        history: FaultHistory,
        planning: Planning,
    ) -> None:
        self._job, self._monitor, self._drains = job, monitor, drains
        self._rehearsals, self._history, self._planning = rehearsals, history, planning

    def fence(self, now: float) -> None:
        job = self._job
        job.next_generation()
        job.commits.on_fence()
        self._monitor.end_generation()
        self._drains.on_fence()
        job.enter(Phase.FENCING, now, job.deadlines.fence_s)
        job.out.send_each(job.members, Fence(generation=job.generation, cause=job.cause))
        job.out.emit("fence")
        self.name_newcomers()
        self._planning.plan_when_frozen(now)

    def name_newcomers(self) -> None:
        """Spares end what else they do and build for their ranks while survivors are still unwinding."""
        for member, position in self._job.newcomers():
            self._job.out.send(member.node, Needed(generation=self._job.generation))
            self._rehearsals.rehearse_position(member, position)

    def on_ack(self, member: Member, ack: FenceAck, now: float) -> None:
        if member.inventory is None:
            member.inventory, member.planned_in = ack.inventory, ack.planned
            for rank, found in ack.hung if member.position is not None else ():
                self._on_hung_rank(member, rank, found, now)
        if self._job.is_stopping:
            self._planning.plan_when_frozen(now)
        elif member.position is None:
            self._take_back(member)

    def _on_hung_rank(self, member: Member, rank: int, found: str, now: float) -> None:
        if self._monitor.hang.on_found(member.node, rank, found):
            self._history.blame_hung_rank(member.node, member.rack, rank, found, now)
            self.name_newcomers()

    def _take_back(self, member: Member) -> None:
        """The node was taken for lost while others went on, and is at rest now. It gets a plan without an order, which
        makes it a spare that keeps what is still of use. That this generation has gone is told too, because the node
        has not heard its plan: it forgets its recordings."""
        job, inventory = self._job, member.inventory or Inventory()
        copies = [f"{copy.seal.rank}:{copy.seal.version}" for copy in (*inventory.own, *inventory.held)]
        job.out.emit("returned", node=member.node, copies=copies)
        plan = Plan(
            generation=job.generation,
            cause=job.cause,
            resume=job.commits.resume,
            permit=job.commits.permit,
            store_rank=0,
            changes=Changes(since=job.generation),
            scheme=job.scheme,
            quarantined=member.quarantined,
        )
        job.out.send(member.node, plan)
        self._rehearsals.send_again(member)
