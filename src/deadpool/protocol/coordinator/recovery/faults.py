"""A fault, and the end of the generation that follows.

`Faults`: what follows from a fault: it gets a name, a node may be blamed for it, and the generation ends in a fence.

`Fencing`: the end of a generation: every node stops its ranks and reports what it has.
"""

from __future__ import annotations

from dataclasses import replace

from deadpool.protocol.causes import EndCause, FaultKind
from deadpool.protocol.coordinator.audit import RecoveryAudit
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leaving.drain import Drains
from deadpool.protocol.coordinator.leaving.ending import Ending
from deadpool.protocol.coordinator.membership.hang import HangMonitor, Standstill
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.membership.run_monitor import RunMonitor
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.recovery.fault_history import FaultHistory, ObservedFault
from deadpool.protocol.coordinator.recovery.planning import Planning
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.coordinator.recovery.resumption import Resumption
from deadpool.protocol.messages import Fence, FenceAck, Inventory, Needed, Plan, TrainerLost
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


class Faults:
    def __init__(
        self,
        job: JobState,
        history: FaultHistory,
        hang: HangMonitor,
        fencing: Fencing,
        resumption: Resumption,
        ending: Ending,
        fallback: Fallback,
        audit: RecoveryAudit,
    ) -> None:
        self._job, self._history, self._hang = job, history, hang
        self._fencing, self._resumption, self._ending = fencing, resumption, ending
        self._fallback, self._audit = fallback, audit

    def recover(self, fault: ObservedFault, now: float) -> None:
        """From any fault, in any phase: the next generation begins."""
        job, retries = self._job, self._history.retries
        node, rank, reason, ranks = fault.node, fault.rank, fault.reason, list(fault.ranks)
        if job.released:
            job.out.emit("lost_after_release", node=node, rank=rank, reason=reason, ranks=ranks)
            if rank is None:
                job.commits.end()
            self._resumption.on_lost_after_release(ranks)
            return
        job.name_cause("fault")
        during, since_s = job.phase.value, fault.since_s
        kind = fault.kind.value
        job.out.emit(
            "fault", node=node, rank=rank, kind=kind, reason=reason, ranks=ranks, during=during, since_s=since_s
        )
        # Nodes that are lost while another loss is dealt with are the same disaster, and not one more retry. A step
        # that is computed again on purpose has not failed; whoever does so counts how often.
        one_more = rank is not None or (job.phase is Phase.RUNNING and fault.kind is not FaultKind.AUDIT)
        if retries.is_exceeded_by(replace(fault, cause=job.cause), one_more=one_more):
            self._give_up()
        if fault.kind is FaultKind.HANG:
            self._hang.begin_search()
        else:
            self._hang.end_search()
        self._history.blame(fault, now)
        self._fencing.fence(now)

    def _give_up(self) -> None:
        """The job stops once more, so that what is left of it can be kept."""
        retries = self._history.retries
        if retries.given_up is None:
            retries.give_up()
            self._job.out.emit("no_progress", step=retries.step, reason=retries.given_up, **retries.facts())

    def on_hang(self, hang: Standstill, now: float) -> None:
        """No rank is lost: the rank at fault is the one that will not come to rest."""
        self.recover(ObservedFault(kind=FaultKind.HANG, reason=hang.reason, ranks=()), now)

    def on_trainer_lost(self, member: Member, lost: TrainerLost, now: float) -> None:
        job, node, rank, reason = self._job, member.node, lost.rank, lost.reason
        if rank is None:
            job.out.emit("trainer_lost", node=node, trainer=lost.trainer, reason=reason)
            return
        if job.is_stopping or job.phase is Phase.SALVAGING:
            return
        if lost.unread is not None and job.plan is not None and job.unread.note(job.plan, node, rank, lost.unread):
            job.out.emit("copy_unreadable", node=node, rank=rank, step=lost.unread.number, reason=reason)
        if self._audit.ends(rank):
            self._audit.on_ended(member)
            why = "audit: this rank ends on purpose"
            self.recover(ObservedFault(kind=FaultKind.AUDIT, reason=why, ranks=(rank,), node=node, rank=rank), now)
            return
        blamed = node if lost.trainer else None  # else no process has ended: a copy was not to be had
        if (untenable := self._if_unread(lost)) is not None:
            self._ending.end(EndCause.FALLBACK_UNREAD, untenable, failed=True)
            return
        if lost.kind is FaultKind.INEXACT:
            why = f"rank {rank} was stopped, because the script is not exact: {reason}"
            self._ending.end(EndCause.INEXACT, why, failed=True)
            return
        is_device = lost.kind is FaultKind.DEVICE
        if (is_device or lost.kind is FaultKind.SCRIPT) and (error := self._history.retries.on_error(reason, node)):
            if not (error.only_on_this_node and is_device and job.has_healthy_spare):
                self._ending.end(EndCause.SCRIPT_FAILED, f"rank {rank} failed {error.text}: {reason}", failed=True)
                return
            self._history.quarantine.add(node, f"the same error again on this node: {reason}")
            blamed = node
        fault = ObservedFault(
            kind=lost.kind, reason=reason, ranks=(rank,), node=node, rank=rank, blamed=blamed, rack=member.rack
        )
        self.recover(fault, now)

    def _if_unread(self, lost: TrainerLost) -> str | None:
        """Why the job has to end, if it is what the plan goes back to that was not to be had. Nothing newer is left in
        memory: nodes dropped it when they took the plan."""
        kept = self._job.plan.fallback if self._job.plan is not None else ""
        if not kept or lost.fallback != kept:
            return None
        before = self._fallback.newest
        untenable = self._fallback.on_unread(kept, lost.reason)
        if self._fallback.newest is not before:
            self._history.retries.begin_anew()  # with an older version, whose reads are counted for themselves
        return untenable
