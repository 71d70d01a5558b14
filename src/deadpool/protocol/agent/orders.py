"""What a node does when its coordinator says so."""

from __future__ import annotations

from typing import Any

from deadpool.protocol.agent.coordinator_session import Service
from deadpool.protocol.agent.heartbeat import Vitals
from deadpool.protocol.agent.recorded_collectives import NodeRecordings
from deadpool.protocol.agent.seating import Seating
from deadpool.protocol.agent.state import Station
from deadpool.protocol.agent.takeover_report import Witness
from deadpool.protocol.agent.trainers import State
from deadpool.protocol.agent.unwinding import Unwinding
from deadpool.protocol.effects import WriteOut
from deadpool.protocol.messages import (
    Connect,
    Fence,
    Final,
    Go,
    Permit,
    Plan,
    PlanAck,
    Proceed,
    Recording,
    Refused,
    Rehearse,
    Release,
    Reschedule,
    Salvage,
    Shutdown,
    Spoilt,
    Stand,
    Welcome,
)


class Orders:
    def __init__(
        self,
        station: Station,
        *,
        service: Service,
        unwinding: Unwinding,
        seating: Seating,
        vitals: Vitals,
        recordings: NodeRecordings,
        witness: Witness,
        standby: int,
        spare: bool,
    ) -> None:
        self._station, self._service, self._unwinding, self._seating = station, service, unwinding, seating
        self._vitals, self._recordings, self._witness = vitals, recordings, witness
        self._standby, self._spare = standby, spare

    def obey(self, message: Any, now: float) -> None:
        station, running = self._station, not self._station.fenced
        if getattr(message, "generation", station.generation) < station.generation:
            return  # an order of a generation that is over
        match message:
            case Welcome():
                self._service.welcomed(message, now)
            case Refused(reason=reason):
                station.end(f"the coordinator refused node {station.node}: {reason}", failed=True)
            case Recording():
                self._recordings.borrow(message)
            case Rehearse():
                self._rehearse(message)
            # a recovery, in its order
            case Fence():
                self._fence(message, now)
            case Plan():
                self._carry_out(message)
            case Connect() if running:
                station.crew.tell_seated(message)
            case Go() if running and self._seating.plan is not None:
                self._witness.went()
                self._seating.go(message)
            # copies, while the job runs
            case Permit() if running:
                self._permit(message, now)
            case Spoilt(node=node, rank=rank, version=version) if node != station.node:
                station.store.replenish(rank, node, version)
            case Spoilt(rank=rank, version=version):
                station.store.spoil(rank, version)
            # ways out
            case Stand() if running:
                self._service.stand(message)
            case Proceed() if running:
                self._service.proceed()
            case Release() if running:
                self._release(message)
            case Salvage(version=version, ranks=ranks):
                station.effects.append(WriteOut(copies=station.store.copies_of(version, ranks)))
            case Shutdown(reason=reason, failed=failed):
                station.end(reason, failed=failed)

    def _rehearse(self, order: Rehearse) -> None:
        crew = self._station.crew
        trainer = crew.trainers.get(order.trainer)
        if trainer is None or trainer.state not in (State.IDLE, State.REHEARSING, State.PARKED):
            return
        if trainer.state is State.IDLE or trainer.rank != order.rank:  # else it was said twice
            if trainer.begun:
                crew.replace(trainer, f"it has begun the script as rank {trainer.rank}", rank=order.rank)
            else:
                self._recordings.begin_rehearsal(trainer, order)
            self._station.report_trainers()

    def _fence(self, fence: Fence, now: float) -> None:
        station = self._station
        if station.settings is None or (station.fenced and fence.generation == station.generation):
            return  # said twice
        self._vitals.fence(now)
        self._service.fence()
        self._recordings.fence()
        self._unwinding.fence(fence, now)

    def _carry_out(self, plan: Plan) -> None:
        station, crew = self._station, self._station.crew
        if station.settings is None or (plan.generation == station.generation and not station.fenced):
            return  # said twice
        plan = plan.filled_in(self._seating.plan)
        station.enter(plan.generation, plan.cause, fenced=False)
        self._unwinding.planned()
        has_missed_one = self._witness.has_missed(plan)
        if has_missed_one:
            crew.replace_rehearsals(but=self._recordings.forget_own())
        if plan.resume is None:
            crew.replace_rehearsals()
        station.store.adopt(plan)
        self._witness.planned(plan, station.settings.layout)
        self._vitals.costs.begin(plan.permit.schedule)
        station.tell_coordinator(PlanAck(generation=plan.generation))
        if plan.resume is None:
            self._recordings.void(plan.generation)
        if not plan.orders and any(crew.seated()):
            self._recordings.clear()  # its ranks are others': it is told anew what it needs
        self._seating.carry_out(plan, afresh=plan.resume is None or has_missed_one)
        if self._spare and plan.orders:
            crew.retire(keep=self._standby)
        station.report_trainers()

    def _permit(self, permit: Permit, now: float) -> None:
        store, crew, before = self._station.store, self._station.crew, self._station.store.permit
        store.obey(permit)
        self._witness.permitted(permit)
        if before is None or before.schedule != permit.schedule:
            self._vitals.reschedule(permit.schedule)
            crew.tell_seated(Reschedule(generation=permit.generation, schedule=permit.schedule))
        self._dismiss_leaving()
        if permit.watermark is not None:
            self._vitals.committed(permit.watermark.number, now)
            crew.tell_seated(Final(number=permit.watermark.number))
        self._seating.grant_all()

    def _dismiss_leaving(self) -> None:
        """Not during the recovery: the end of a process takes CPU time that the redone step needs."""
        crew = self._station.crew
        for trainer in crew.leaving():
            crew.send_away(trainer, "this node needs it no more")

    def _release(self, order: Release) -> None:
        crew = self._station.crew
        for trainer in crew.seated():
            trainer.released = True
        crew.tell_seated(order)
