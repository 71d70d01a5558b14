"""What a node does when its coordinator says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from msgspec.structs import replace

from deadpool.protocol.agent.leadership.coordinator_liveness import ReachedNodes
from deadpool.protocol.agent.leadership.coordinator_session import CoordinatorSession
from deadpool.protocol.agent.leadership.heartbeat import Heartbeats
from deadpool.protocol.agent.leadership.takeover_report import TakeoverRecord
from deadpool.protocol.agent.seams import AgentPart
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.readiness import NodeRecordings
from deadpool.protocol.agent.trainers.seating import Seating
from deadpool.protocol.agent.trainers.trainers import TrainerState
from deadpool.protocol.agent.trainers.unwinding import Unwinding
from deadpool.protocol.causes import EndCause
from deadpool.protocol.effects import WriteOut
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.messages import (
    Alive,
    Audit,
    AuditOver,
    Connect,
    CopyLost,
    Fence,
    Final,
    Go,
    JoinRefused,
    Needed,
    OrderMessage,
    Permit,
    Plan,
    Probe,
    Proceed,
    Recording,
    Rehearse,
    Release,
    Reschedule,
    Salvage,
    Shutdown,
    Stand,
    StepAudit,
    Welcome,
)
from deadpool.protocol.schemes import RankGroup


class Orders:
    def __init__(
        self,
        state: AgentState,
        *,
        session: CoordinatorSession,
        unwinding: Unwinding,
        seating: Seating,
        heartbeats: Heartbeats,
        recordings: NodeRecordings,
        reachability: ReachedNodes,
        features: Sequence[AgentPart],
        record: TakeoverRecord,
        standby: int,
        spare: bool,
    ) -> None:
        self._state, self._session, self._unwinding, self._seating = state, session, unwinding, seating
        self._heartbeats, self._recordings, self._record = heartbeats, recordings, record
        self._reachability = reachability
        self._features = features
        self._standby, self._spare = standby, spare

    def on_message(self, message: OrderMessage, now: float) -> None:
        state, unfenced = self._state, not self._state.current.is_fenced
        if getattr(message, "generation", state.current.generation) < state.current.generation:
            return  # an order of a generation that is over
        match message:
            case Welcome():
                self._session.on_welcome(message, now)
            case JoinRefused(reason=reason):
                state.end(EndCause.REFUSED, f"the coordinator refused node {state.node}: {reason}", failed=True)
            case Recording():
                self._recordings.on_coordinator_recording(message)
            case Rehearse():
                self._rehearse(message)
            # a recovery, in its order
            case Fence():
                self._fence(message, now)
            case Needed() if not any(state.trainers.seated()):
                for part in self._features:
                    part.on_needed()
            case Plan():
                self._carry_out(message)
            case Connect() if unfenced:
                state.trainers.tell_seated(message)
            case Go() if unfenced and self._seating.plan is not None:
                self._go(message)
            case Probe():
                self._reachability.probe(message)
            # copies, while the job runs
            case Permit() if unfenced:
                self._apply_permit(message, now)
            case CopyLost(node=node, group=RankGroup() as group, version=version) if node != state.node:
                state.copies.send_to_group_again(group, node, version)
            case CopyLost(node=node, rank=rank, version=version) if node != state.node:
                state.copies.replace_at_holder(rank, node, version)
            case CopyLost(rank=rank, version=version, group=group):
                state.copies.drop_damaged(rank, version, group)
                state.tell_coordinator(replace(message, dropped=True))
            case FeatureMessage():
                for part in self._features:
                    part.on_order(message)
            case Audit() | StepAudit() | AuditOver():
                state.audit = message if not isinstance(message, AuditOver) else None
                state.trainers.tell_seated(message)
            # ways out
            case Stand() if unfenced:
                self._session.stand(message)
            case Proceed() if unfenced:
                self._session.proceed()
            case Release() if unfenced:
                self._release(message)
            case Salvage(version=version, ranks=ranks):
                state.effects.append(WriteOut(copies=state.copies.copies_of(version, ranks)))
            case Shutdown(reason=reason, failed=failed):
                state.end(EndCause.ASKED, reason, failed=failed)
            case Alive():
                pass  # it was heard, which is all that it says
            case Connect() | Go() | Permit() | Stand() | Proceed() | Release() | Needed():
                pass  # this node is fenced meanwhile, or has a seat
            case _ as never:
                assert_never(never)

    def _rehearse(self, order: Rehearse) -> None:
        trainers = self._state.trainers
        trainer = trainers.by_name.get(order.trainer)
        ready = (TrainerState.IDLE, TrainerState.REHEARSING, TrainerState.PARKED)
        if trainer is None or trainer.state not in ready:
            return
        if trainer.state is TrainerState.IDLE or trainer.rank != order.rank:  # else the order came twice
            if trainer.begun:
                trainers.replace(trainer, f"it has begun the script as rank {trainer.rank}", rank=order.rank)
            else:
                self._recordings.begin_rehearsal(trainer, order)
            self._state.report_trainers()

    # --- a recovery --------------------------------------------------------------------------------------------------

    def _fence(self, fence: Fence, now: float) -> None:
        current = self._state.current
        if self._state.settings is None:
            return
        if current.is_fenced and fence.generation == current.generation:
            self._unwinding.acknowledge_again()
            return
        self._heartbeats.fence(now)
        self._session.fence()
        self._recordings.fence()
        self._unwinding.fence(fence, now)

    def _carry_out(self, plan: Plan) -> None:
        state, current = self._state, self._state.current
        if state.settings is None or (plan.generation == current.generation and not current.is_fenced):
            return  # the order came twice
        plan = plan.filled_in(self._seating.plan)
        if not all(part.permits(plan) for part in self._features):
            return  # it comes again when it can be carried out
        for part in self._features:
            part.on_plan(plan)
        current.prepare(plan.generation, plan.cause)
        self._unwinding.on_plan()
        has_missed_one = self._record.has_missed_one_before(plan)
        if has_missed_one:
            state.trainers.replace_rehearsals(but=self._recordings.forget_own())
        if plan.resume is None:
            state.trainers.replace_rehearsals()
        state.copies.adopt(plan, state.node)
        self._record.on_plan(plan, state.settings.layout)
        self._heartbeats.on_plan(plan.permit.schedule)
        self._seat(plan, afresh=plan.resume is None or has_missed_one)
        state.report_trainers()

    def _seat(self, plan: Plan, *, afresh: bool) -> None:
        """A node whose ranks move to other nodes keeps its recordings: where the plan that moves them does not go, and
        the coordinator is lost with what it had, no other node may have them (rule 23, one script run per process)."""
        trainers = self._state.trainers
        if plan.resume is None:
            self._recordings.void(plan.generation)
        self._seating.carry_out(plan, afresh=afresh)
        if plan.resume is not None:
            self._tell_recordings(plan)
        if self._spare and plan.orders:
            trainers.retire(keep=self._standby)

    def _tell_recordings(self, plan: Plan) -> None:
        """Tells the coordinator the recordings that it lacks. Without them it could not let another spare rehearse
        these ranks.
        """
        for recording in self._recordings.unknown_to_coordinator(order.rank for order in plan.orders):
            self._state.tell_coordinator(recording)

    def _go(self, go: Go) -> None:
        self._state.current.go()
        self._record.on_go()
        self._seating.go(go)

    # --- while the job runs, and its end -----------------------------------------------------------------------------

    def _apply_permit(self, permit: Permit, now: float) -> None:
        copies, trainers, before = self._state.copies, self._state.trainers, self._state.copies.permit
        copies.apply_permit(permit)
        self._record.on_permit(permit)
        if before is None or before.schedule != permit.schedule:
            self._heartbeats.reschedule(permit.schedule)
            trainers.tell_seated(Reschedule(generation=permit.generation, schedule=permit.schedule))
        self._discard_leaving()
        if permit.watermark is not None:
            self._heartbeats.on_committed(permit.watermark.number, now)
            trainers.tell_seated(Final(number=permit.watermark.number))
        self._seating.grant_slots()

    def _discard_leaving(self) -> None:
        """Discards trainers that leave, but not during the recovery: the end of a process takes CPU time that the
        redone step needs.
        """
        trainers = self._state.trainers
        for trainer in trainers.leaving():
            trainers.discard(trainer, "this node needs it no more")

    def _release(self, order: Release) -> None:
        trainers = self._state.trainers
        for trainer in trainers.seated():
            trainer.released = True
        trainers.tell_seated(order)
