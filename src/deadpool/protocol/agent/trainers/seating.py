"""A node's seats under a plan: which process takes each one, and from where its state comes.

A seat is ready when its process exists and stands at the resume version: because it kept its state, because the node
has the snapshot, or because a holder sends it. None of this happens under a fence.
"""

from __future__ import annotations

import itertools

from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.readiness import NodeRecordings, Readiness
from deadpool.protocol.agent.trainers.trainers import Trainer, TrainerState
from deadpool.protocol.causes import FaultKind
from deadpool.protocol.effects import ToTrainer
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import (
    Arriving,
    Attach,
    Fetch,
    Final,
    Go,
    Grant,
    Plan,
    Prepared,
    RankOrder,
    Restore,
    Seat,
    TrainerLost,
)


class Seating:
    def __init__(self, state: AgentState, recordings: NodeRecordings) -> None:
        self._state, self._current, self._recordings = state, state.current, recordings
        self._trainers, self._copies = state.trainers, state.copies
        self.readiness = Readiness(state)
        self.plan: Plan | None = None
        self._pending_fetches: dict[int, list[Fetch]] = {}

    def fence(self) -> None:
        self._pending_fetches.clear()
        self.readiness.forget()

    def carry_out(self, plan: Plan, *, afresh: bool) -> None:
        """`afresh`: none of the processes here can go on, whatever state it holds."""
        self.plan = plan
        self.readiness.begin(plan)
        self._end_unseated(plan, afresh)
        for order in plan.orders:
            if order.carrier is not None:
                self._pending_fetches[order.rank] = list(order.fetch)
                self._fetch_next(order.rank)
        for order in plan.orders:
            if order.carrier is None:
                self._seat(order, plan)
        self.announce_arrivals()

    def _end_unseated(self, plan: Plan, afresh: bool) -> None:
        """A start from the first line needs fresh processes, and so does a node that may have missed one: its scripts
        were sent recordings of an earlier start. A rank that moved to another node needs no process here."""
        mine = {order.rank for order in plan.orders if order.carrier is None}
        for trainer in list(self._trainers.seated()):
            if afresh or trainer.rank not in mine:
                self._trainers.discard(trainer, "its seat is gone")
                self._trainers.start()

    def _seat(self, order: RankOrder, plan: Plan) -> None:
        trainer = self._trainers.trainer_of(order.rank)
        if trainer is None:
            trainer = self._trainers.take_for(order.rank)
            trainer.state, trainer.rank = TrainerState.SEATED, order.rank
            trainer.shares = trainer.shares or self._trainers.shares_of.get(order.rank)
            trainer.under_real_groups = plan.resume is None
            if trainer.store is not None:
                self._tell_seat(trainer, plan)
        trainer.further_ranks = _carried_by(order.rank, plan)
        self._pending_fetches[order.rank] = list(order.fetch)
        if plan.resume is not None:
            self._restore_if_ready(order, plan, plan.resume)
            self._check_source(order, trainer, plan.resume)
        self._fetch_next(order.rank)

    def _check_source(self, order: RankOrder, trainer: Trainer, resume: Version) -> None:
        """The plan counts on a live state whose trainer may have ended since the fence was acknowledged."""
        coming = any(fetch.copy.seal.version == resume for fetch in order.fetch)
        if not (trainer.stands_at(resume) or coming or self._copies.find_own(order.rank, resume)):
            reason = "its trainer ended under the fence, its live state was to be kept"
            self.report_lost(order.rank, FaultKind.TRAINER, reason, trainer.name)

    def report_lost(
        self,
        rank: int,
        kind: FaultKind,
        reason: str,
        trainer: str = "",
        *,
        unread: Version | None = None,
        fallback: str = "",
    ) -> None:
        """The seat cannot be kept under this plan, which is a fault."""
        assert self.plan is not None
        lost = TrainerLost(
            generation=self.plan.generation,
            trainer=trainer,
            rank=rank,
            reason=reason,
            kind=kind,
            unread=unread,
            fallback=fallback,
        )
        self._state.tell_coordinator(lost)

    # --- the process and its snapshot come, in either order ----------------------------------------------------------

    def on_trainer_ready(self, trainer: Trainer) -> None:
        assert self.plan is not None
        self._tell_seat(trainer, self.plan)
        order = next((order for order in self.plan.orders if order.rank == trainer.rank), None)
        if order and self.plan.resume:
            self._restore_if_ready(order, self.plan, self.plan.resume)
        self.announce_arrivals()

    def on_snapshot(self, rank: int) -> None:
        assert self.plan is not None and self.plan.resume is not None
        orders = {order.rank: order for order in self.plan.orders}
        carrier = orders[rank].carrier
        self._restore_if_ready(orders[rank if carrier is None else carrier], self.plan, self.plan.resume)
        self._fetch_next(rank)

    def _tell_seat(self, trainer: Trainer, plan: Plan) -> None:
        """In a start from the first line, a process that exists is prepared: it has no state to load."""
        assert trainer.rank is not None and trainer.store is not None
        if plan.resume is not None:
            self._recordings.send_to(trainer)
        seat = Seat(
            generation=plan.generation,
            cause=plan.cause,
            rank=trainer.rank,
            resume=plan.resume,
            schedule=plan.permit.schedule,
        )
        self._trainers.tell(trainer, seat)
        if self._state.audit is not None:
            self._trainers.tell(trainer, self._state.audit)
        trainer.begun = True
        if plan.resume is None:
            prepared = Prepared(generation=plan.generation, rank=trainer.rank, store=trainer.store)
            self.readiness.on_prepared(prepared)

    def _fetch_next(self, rank: int) -> None:
        fetches = self._pending_fetches.get(rank, [])
        while fetches and self._copies.is_expired(fetches[0].copy.seal.version):
            fetches.pop(0)  # it was the floor of a rollback, and is so no longer
        if fetches:
            self._copies.arrivals.fetch(rank, fetches.pop(0))

    def announce_arrivals(self) -> None:
        """Once per plan, each process whose state is on its way here is told where, so that it may load early."""
        if self._current.is_fenced or self.plan is None or self.plan.resume is None:
            return
        for trainer in self._trainers.seated():
            known = self.plan.generation in (trainer.arriving_in, trainer.restored_in)
            if trainer.store is not None and not known:
                self._announce(trainer, self.plan.generation, self.plan.resume)

    def _announce(self, trainer: Trainer, generation: Generation, resume: Version) -> None:
        assert trainer.rank is not None
        coming = self._copies.arrivals.find(trainer.rank, resume)
        if coming is None:
            return
        slot, seal = coming
        trainer.arriving_in = generation
        self._attach(trainer, slot.segment)
        self._trainers.tell(trainer, Arriving(generation=generation, slot=slot, seal=seal))

    def _restore_if_ready(self, order: RankOrder, plan: Plan, resume: Version) -> None:
        """Once per plan, as soon as both the process and the resume version are here. A process that stands at the
        version loads the node's sealed copy too: live memory stays only without one (rule 9, clean live state)."""
        trainer = self._trainers.trainer_of(order.rank)
        if trainer is None or trainer.store is None or trainer.restored_in == plan.generation:
            return
        slot = self._copies.find_own(order.rank, resume)
        keep = order.keep and trainer.stands_at(resume)
        records = [(rank, self._copies.find_own(rank, resume)) for rank in trainer.further_ranks]
        carried = tuple((rank, found) for rank, found in records if found is not None)
        if (not keep and slot is None) or len(carried) < len(records):
            return
        trainer.restored_in = plan.generation
        trainer.step = min(trainer.step, resume.number)  # still 0 if this process has never completed one
        restore = Restore(
            generation=plan.generation,
            version=resume,
            slot=slot,
            schedule=plan.permit.schedule,
            capture=slot is None,
            carried=carried,
        )
        for _, found in carried:
            self._attach(trainer, found.segment)
        if restore.slot is not None:
            self._copies.use_geometry_of(restore.slot)
            self._attach(trainer, restore.slot.segment)
        self._trainers.tell(trainer, restore)

    # --- Go, and slots for the captures ------------------------------------------------------------------------------

    def go(self, go: Go) -> None:
        assert self.plan is not None
        for trainer in self._trainers.seated():
            trainer.live = None
        self._trainers.tell_seated(go)
        self._copies.go(self.plan)
        for trainer in self._trainers.seated():
            self.declare_further(trainer)
        self.grant_slots()
        if self.plan.permit.watermark is not None:
            self._trainers.tell_seated(Final(number=self.plan.permit.watermark.number))

    def declare_further(self, trainer: Trainer) -> None:
        """All ranks whose work one process does have snapshots of the same geometry, and the same peers."""
        for own, rank in itertools.product(trainer.ranks[:1], trainer.further_ranks):
            self._copies.declare_as(rank, own)

    def grant_slots(self) -> None:
        for trainer in self._trainers.seated():
            for rank in trainer.ranks if trainer.has_state else ():
                self._grant(trainer, rank)

    def _grant(self, trainer: Trainer, rank: int) -> None:
        for slot in self._copies.grants(rank):
            self._attach(trainer, slot.segment)
            further = rank if rank != trainer.rank else None
            self._trainers.tell(trainer, Grant(generation=self._current.generation, slot=slot, rank=further))

    def _attach(self, trainer: Trainer, segment: int) -> None:
        """The trainer maps a segment once; the file descriptor travels beside the message."""
        if segment in trainer.attached:
            return
        trainer.attached.add(segment)
        own = [self._copies.own[rank] for rank in trainer.ranks]
        slot = next(s for each in own for ref, s in each.by_ref.items() if ref.segment == segment)
        count = max(rank_slots.slots_in(segment) for rank_slots in own)
        attach = Attach(segment=segment, geometry=slot.geometry, count=count)
        self._state.effects.append(ToTrainer(trainer=trainer.name, message=attach, segment=segment))


def _carried_by(rank: int, plan: Plan) -> tuple[int, ...]:
    """Rule 30, carried ranks: ranks whose work the process of this one does too."""
    return tuple(order.rank for order in plan.orders if order.carrier == rank)
