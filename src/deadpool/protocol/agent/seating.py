"""A node's seats under a plan: which process takes each, from where its state comes.

A seat is ready when its process is there and stands at the resume version: because it kept its state, because the node
has the snapshot, or because a holder gives it. None of this happens under a fence.
"""

from __future__ import annotations

from deadpool.protocol.agent.copies import Storehouse
from deadpool.protocol.agent.recorded_collectives import NodeRecordings
from deadpool.protocol.agent.trainers import Crew, State, Trainer
from deadpool.protocol.effects import AgentEffect, ToCoordinator, ToTrainer
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
    def __init__(self, crew: Crew, store: Storehouse, recordings: NodeRecordings, out: list[AgentEffect]) -> None:
        self._crew, self._store, self._recordings, self._out = crew, store, recordings, out
        self.plan: Plan | None = None
        self._pending_fetches: dict[int, list[Fetch]] = {}

    def fence(self) -> None:
        self._pending_fetches.clear()

    def carry_out(self, plan: Plan, *, afresh: bool) -> None:
        """`afresh`: none of the processes here can go on, whatever it holds."""
        self.plan = plan
        self._unseat_strangers(plan, afresh)
        for order in plan.orders:
            self._seat(order, plan)
        self.announce_all()

    def _unseat_strangers(self, plan: Plan, afresh: bool) -> None:
        """A start from the first line needs fresh processes, and so does who may have missed one: what its script was
        told by others is of an earlier start. A seat that moved away needs none here."""
        mine = {order.rank for order in plan.orders}
        for trainer in list(self._crew.seated()):
            if afresh or trainer.rank not in mine:
                self._crew.send_away(trainer, "its seat is gone")
                self._crew.hire()

    def _seat(self, order: RankOrder, plan: Plan) -> None:
        trainer = self._crew.holder_of(order.rank)
        if trainer is None:
            trainer = self._crew.take_for(order.rank)
            trainer.state, trainer.rank = State.SEATED, order.rank
            trainer.under_real_groups = plan.resume is None
            if trainer.store is not None:
                self._tell_seat(trainer, plan)
        self._pending_fetches[order.rank] = list(order.fetch)
        if plan.resume is not None:
            self._restore(order, plan, plan.resume)
            self._check_promise(order, trainer, plan.resume)
        self._fetch_next(order.rank)

    def _check_promise(self, order: RankOrder, trainer: Trainer, resume: Version) -> None:
        """The plan counts on a live state. Its trainer may have ended since the fence was acknowledged."""
        coming = any(fetch.copy.seal.version == resume for fetch in order.fetch)
        if not (trainer.stands_at(resume) or coming or self._store.find_own(order.rank, resume)):
            self.lost(order.rank, "its trainer ended under the fence, its live state was to be kept", trainer.name)

    def lost(self, rank: int, reason: str, trainer: str = "") -> None:
        """The seat cannot be kept under this plan: a fault."""
        assert self.plan is not None
        lost = TrainerLost(generation=self.plan.generation, trainer=trainer, rank=rank, reason=reason)
        self._out.append(ToCoordinator(message=lost))

    # --- the process and its snapshot come, in either order ----------------------------------------------------------

    def process_came(self, trainer: Trainer) -> None:
        assert self.plan is not None
        self._tell_seat(trainer, self.plan)
        order = next((order for order in self.plan.orders if order.rank == trainer.rank), None)
        if order and self.plan.resume:
            self._restore(order, self.plan, self.plan.resume)
        self.announce_all()

    def snapshot_came(self, rank: int) -> None:
        assert self.plan is not None and self.plan.resume is not None
        order = next(order for order in self.plan.orders if order.rank == rank)
        self._restore(order, self.plan, self.plan.resume)
        self._fetch_next(rank)

    def _tell_seat(self, trainer: Trainer, plan: Plan) -> None:
        """The process is there. In a start from the first line that is all it takes to be prepared."""
        assert trainer.rank is not None and trainer.store is not None
        if plan.resume is not None:
            self._recordings.tell(trainer)
        seat = Seat(
            generation=plan.generation,
            cause=plan.cause,
            rank=trainer.rank,
            resume=plan.resume,
            schedule=plan.permit.schedule,
        )
        self._crew.tell(trainer, seat)
        trainer.begun = True
        if plan.resume is None:
            prepared = Prepared(generation=plan.generation, rank=trainer.rank, store=trainer.store)
            self._out.append(ToCoordinator(message=prepared))

    def _fetch_next(self, rank: int) -> None:
        fetches = self._pending_fetches.get(rank, [])
        while fetches and self._store.is_dead(fetches[0].copy.seal.version):
            fetches.pop(0)  # a floor that is one no longer
        if fetches:
            self._store.fetch(rank, fetches.pop(0))

    def announce_all(self) -> None:
        """Once per plan: a process whose state is on its way here may begin to load what there is of it."""
        if self._store.fenced or self.plan is None or self.plan.resume is None:
            return
        for trainer in self._crew.seated():
            known = self.plan.generation in (trainer.arriving_in, trainer.restored_in)
            if trainer.store is not None and not known:
                self._announce(trainer, self.plan.generation, self.plan.resume)

    def _announce(self, trainer: Trainer, generation: Generation, resume: Version) -> None:
        assert trainer.rank is not None
        coming = self._store.find_arriving(trainer.rank, resume)
        if coming is None:
            return
        slot, seal = coming
        trainer.arriving_in = generation
        self._attach(trainer, slot.segment)
        self._crew.tell(trainer, Arriving(generation=generation, slot=slot, seal=seal))

    def _restore(self, order: RankOrder, plan: Plan, resume: Version) -> None:
        """Once per plan, as soon as both the process and the resume version are there."""
        trainer = self._crew.holder_of(order.rank)
        if trainer is None or trainer.store is None or trainer.restored_in == plan.generation:
            return
        slot = self._store.find_own(order.rank, resume)
        keep = order.keep and trainer.stands_at(resume)
        if not keep and slot is None:
            return
        trainer.restored_in = plan.generation
        trainer.step = min(trainer.step, resume.number)  # still 0 if this process has never completed one
        restore = Restore(
            generation=plan.generation,
            version=resume,
            slot=None if keep else slot,
            schedule=plan.permit.schedule,
            capture=slot is None,
        )
        if restore.slot is not None:
            self._store.use_geometry_of(restore.slot)
            self._attach(trainer, restore.slot.segment)
        self._crew.tell(trainer, restore)

    # --- go, and slots for the captures ------------------------------------------------------------------------------

    def go(self, go: Go) -> None:
        assert self.plan is not None
        for trainer in self._crew.seated():
            trainer.live = None
        self._crew.tell_seated(go)
        self._store.go(self.plan)
        self.grant_all()
        if self.plan.permit.watermark is not None:
            self._crew.tell_seated(Final(number=self.plan.permit.watermark.number))

    def grant_all(self) -> None:
        for trainer in self._crew.seated():
            if trainer.rank is not None and trainer.has_state:
                for slot in self._store.grants(trainer.rank):
                    self._attach(trainer, slot.segment)
                    self._crew.tell(trainer, Grant(generation=self._store.generation, slot=slot))

    def _attach(self, trainer: Trainer, segment: int) -> None:
        """The trainer maps a segment once; the descriptor travels beside the message."""
        if segment in trainer.attached or trainer.rank is None:
            return
        trainer.attached.add(segment)
        slot = next(s for ref, s in self._store.own[trainer.rank].slots.items() if ref.segment == segment)
        attach = Attach(segment=segment, geometry=slot.geometry, count=self._store.slots_per_shelf)
        self._out.append(ToTrainer(trainer=trainer.name, message=attach, segment=segment))
