"""An agent's decisions: the door through which all its news comes, and its part in a recovery. No I/O.

Trainers are processes that come and go; ranks are seats that stay. Which process takes a seat of this node is decided
here, never by the coordinator. The trainers are kept by `crew.py`, the copies by `storehouse.py`, what they cost by
`costs.py`, a plan is carried out by `seating.py`; whom to follow is `allegiance.py`'s business.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deadpool.events import Event
from deadpool.protocol.allegiance import Allegiance
from deadpool.protocol.costs import CostBook
from deadpool.protocol.crew import Crew, State, Trainer
from deadpool.protocol.effects import (
    AgentEffect,
    AgentInput,
    Allocated,
    AllocationFailed,
    CoordinatorFound,
    CoordinatorLost,
    CutStreams,
    Emit,
    Fetched,
    FetchFailed,
    Finish,
    FromCoordinator,
    FromTrainer,
    Hashed,
    LeaveAsked,
    LookElsewhere,
    Offered,
    Pushed,
    PushFailed,
    Received,
    ReceiveFailed,
    ReleaseSegment,
    SourceSpoilt,
    Stalled,
    StopAsked,
    StreamsCut,
    Tick,
    ToCoordinator,
    TrainerExited,
    WriteOut,
    WrittenOut,
)
from deadpool.protocol.effort import EffortBook
from deadpool.protocol.footing import Footing
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.protocol.messages import (
    Captured,
    Connect,
    Connected,
    Costs,
    Declare,
    Detach,
    DeviceLost,
    Durable,
    Effort,
    End,
    Ended,
    Failed,
    Fence,
    FenceAck,
    Final,
    Finished,
    Go,
    Halt,
    Halted,
    Heartbeat,
    Hung,
    Leave,
    Missed,
    Parked,
    Paused,
    Permit,
    Plan,
    PlanAck,
    Prepared,
    Proceed,
    Prompts,
    Refused,
    Rehearse,
    Release,
    Report,
    Reschedule,
    Salvage,
    Salvaged,
    Settings,
    Shutdown,
    Spoilt,
    Stand,
    Standing,
    Stepped,
    TrainerHello,
    TrainerLost,
    Trainers,
    Welcome,
)
from deadpool.protocol.prompts import NodePrompts
from deadpool.protocol.reach import Verdict, earliest
from deadpool.protocol.seating import Seating
from deadpool.protocol.storehouse import Storehouse
from deadpool.protocol.telling import Telling

START_ATTEMPTS = 3


class Agent:
    def __init__(self, *, node: str, standby: int = 0, spare: bool = False, understudies: int = 1) -> None:
        """A spare node keeps `understudies` trainers for each of its seats, so that more ranks are rehearsed."""
        self.node, self.standby, self.spare, self.understudies = node, standby, spare, understudies
        self.settings: Settings | None = None
        self.generation: Generation = NO_GENERATION
        self.fenced = False
        self.ending = False
        self._cause = ""
        self._acked = True
        self._streams_cut = NO_GENERATION
        self._halt_deadline: float | None = None
        self._hung: list[tuple[int, str]] = []  # since the last plan: rank, how it was found
        self._heartbeat_due: float | None = None
        self._durable: Durable | None = None  # the newest checkpoint that the script told of
        self._effects: list[AgentEffect] = []
        self.crew = Crew(node, self._effects)
        self.store = Storehouse(self._effects)
        self.costs = CostBook()
        self.efforts = EffortBook()
        self._told_costs = Telling[Costs](lambda costs: (costs.every, costs.step_s, costs.stall_s, costs.commit_s))
        self._told_efforts = Telling[Effort](lambda effort: (effort.step_s, effort.own_s))
        self._standing = False  # trainers were told to stop at a version
        self._leave: Leave | None = None  # said, and to be said again to whoever comes next
        allegiance = Allegiance()
        self._allegiance, self._reach, self._witness = allegiance, allegiance.reach, allegiance.witness
        self._prompts = NodePrompts(self.crew)
        self._seating = Seating(self.crew, self.store, self._prompts, self._effects)

    # --- the contract of a core --------------------------------------------------------------------------------------

    def step(self, input: AgentInput, *, now: float) -> list[AgentEffect]:
        if not self.ending:
            self._dispatch(input, now)
        for effect in tuple(self._effects):
            if isinstance(effect, ToCoordinator):
                self._witness.told(effect.message)
            elif isinstance(effect, ReleaseSegment):
                self._detach(effect.segment)
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def _detach(self, segment: int) -> None:
        """Whoever has mapped a segment keeps its memory, whatever the agent does with it."""
        for trainer in self.crew.trainers.values():
            if segment in trainer.attached:
                trainer.attached.remove(segment)
                self.crew.tell(trainer, Detach(segment=segment))

    def deadline(self) -> float | None:
        if self.ending:
            return None
        return earliest(self._halt_deadline, earliest(self._heartbeat_due, self._reach.deadline()))

    @property
    def footing(self) -> Footing:
        """For the Join that begins every link."""
        return self._allegiance.footing(self.generation)

    def check(self) -> None:
        ranks = [trainer.rank for trainer in self.crew.seated()]
        assert len(ranks) == len(set(ranks)), ranks
        assert not (self.fenced and self.store.lanes), "a copy is on its way under a fence"

    def _dispatch(self, input: AgentInput, now: float) -> None:
        match input:
            case CoordinatorFound(patience=patience):
                self._reach.found(now, patience)
            case FromCoordinator(term=term, message=message):
                if self._allegiance.admits(term, message):
                    self._reach.heard(now)
                    self._obey(message, now)
            case CoordinatorLost():
                self._reach.lost(now)
                self._proceed()
            case FromTrainer(trainer=name, message=message):
                self._hear(name, message, now)
            case TrainerExited(trainer=name, code=code, reason=reason):
                self._exited(name, code, reason)
            case Tick():
                self._tick(now)
            case Stalled(seconds=seconds):
                self._reach.excuse(seconds)
                self._tick(now)  # what is due is due all the same: others wait for our heartbeat
            case StopAsked(reason=reason):
                self._end(reason, failed=True)
            case LeaveAsked(reason=reason):
                self._ask_to_leave(reason)
            case _:
                self._data_news(input)

    def _data_news(self, input: AgentInput) -> None:
        """What the data plane has done of what it was told, and what other nodes ask of it."""
        match input:
            case Allocated(segment=segment):
                self.store.allocated(segment)
            case AllocationFailed(segment=segment, reason=reason):
                self.store.allocation_failed(segment, reason)
                self._emit("arena_full", reason=reason)
            case Hashed(slot=slot, digest=digest):
                self.store.hashed(slot, digest)
                self._maybe_ack()
            case Pushed(rank=rank, node=node, version=version):
                self.store.push_ended(rank, node, version, None)
            case PushFailed(rank=rank, node=node, version=version, reason=reason):
                self.store.push_ended(rank, node, version, reason)
                self._emit("push_failed", rank=rank, step=version.number, holder=node, reason=reason)
            case Fetched(rank=rank, slot=slot, copy=copy):
                if self.store.fetched(slot, copy):
                    self._seating.snapshot_came(rank)
            case FetchFailed(rank=rank, slot=slot, reason=reason):
                if self.store.fetch_failed(slot):
                    self._seating.lost(rank, f"no source gave the snapshot of rank {rank}: {reason}")
            case StreamsCut(generation=generation):
                self._cut(generation)
            case Offered():
                self.store.offered(input)
            case Received(slot=slot, copy=copy, bytes_received=count):
                self.store.received(slot, copy, count)
            case ReceiveFailed(slot=slot):
                self.store.arrival_failed(slot)
            case SourceSpoilt(node=node, rank=rank, version=version):
                spoilt = Spoilt(generation=self.generation, node=node, rank=rank, version=version)
                self._to_coordinator(spoilt)
            case WrittenOut(ranks=ranks, folder=folder, failure=failure):
                salvaged = Salvaged(generation=self.generation, ranks=ranks, folder=folder, failure=failure)
                self._to_coordinator(salvaged)
        self._seating.grant_all()
        self._seating.announce_all()

    # --- the coordinator's orders ------------------------------------------------------------------------------------

    def _obey(self, message: Any, now: float) -> None:
        if getattr(message, "generation", self.generation) < self.generation:
            return  # an order of a generation that is over
        match message:
            case Welcome():
                self._welcomed(message, now)
            case Refused(reason=reason):
                self._end(f"the coordinator refused node {self.node}: {reason}", failed=True)
            case Prompts():
                self._prompts.borrow(message)
            case Rehearse():
                self._rehearse(message)
            case Fence():
                self._fence(message, now)
            case Plan():
                self._carry_out(message)
            case Connect() if not self.fenced:
                self.crew.tell_seated(message)
            case Stand() if not self.fenced:
                self._standing = True
                self.crew.tell_seated(message)
            case Proceed() if not self.fenced:
                self._proceed()
            case Go() if not self.fenced and self._seating.plan is not None:
                self._witness.went()
                self._seating.go(message)
            case Permit() if not self.fenced:
                self._permit(message, now)
            case Release() if not self.fenced:
                for trainer in self.crew.seated():
                    trainer.released = True
                self.crew.tell_seated(message)
            case Spoilt(node=node, rank=rank, version=version) if node != self.node:
                self.store.replenish(rank, node, version)
            case Spoilt(rank=rank, version=version):
                self.store.spoil(rank, version)
            case Salvage(version=version, ranks=ranks):
                self._effects.append(WriteOut(copies=self.store.copies_of(version, ranks)))
            case Shutdown(reason=reason, failed=failed):
                self._end(reason, failed=failed)

    def _welcomed(self, welcome: Welcome, now: float) -> None:
        settings, first = welcome.settings, self.settings is None
        self._allegiance.pledge(welcome)
        self.settings = settings
        self.store.slots_per_shelf = settings.slots
        self._heartbeat_due = now + settings.heartbeat_s
        if first:
            seats = settings.layout.per_node
            for _ in range(seats * self.understudies if self.spare else seats + self.standby):
                self.crew.hire()
        else:
            self._told_costs.forget()
            self._told_efforts.forget()
            self._proceed()
            self._testify()
            if self._leave is not None:
                self._to_coordinator(self._leave)

    def _testify(self) -> None:
        if self._durable is not None:
            self._to_coordinator(self._durable)
        if self.generation == NO_GENERATION:
            self._report_trainers()  # all there is to say
            return
        inventory, trainers = self.store.inventory(()), self.crew.infos()
        testimony = self._witness.testify(
            self.generation, fenced=self.fenced, permit=self.store.permit, inventory=inventory, trainers=trainers
        )
        self._to_coordinator(testimony)
        for trainer in self.crew.seated():
            if trainer.rank is not None and (prompts := self._prompts.of(trainer.rank)) is not None:
                self._to_coordinator(prompts)

    def _rehearse(self, order: Rehearse) -> None:
        trainer = self.crew.trainers.get(order.trainer)
        if trainer is None or trainer.state not in (State.IDLE, State.REHEARSING, State.PARKED):
            return
        if trainer.state is State.IDLE or trainer.rank != order.rank:  # else it was said twice
            trainer.state, trainer.rank = State.REHEARSING, order.rank
            self._prompts.tell(trainer)
            self.crew.tell(trainer, order)
            self._report_trainers()

    def _permit(self, permit: Permit, now: float) -> None:
        before = self.store.permit
        self.store.obey(permit)
        self._witness.permitted(permit)
        if before is None or before.schedule != permit.schedule:
            self.costs.begin(permit.schedule)
            self._told_costs.forget()
            self.crew.tell_seated(Reschedule(generation=permit.generation, schedule=permit.schedule))
        self._dismiss_leaving()
        if permit.watermark is not None:
            self.costs.committed(permit.watermark.number, now)
            self.crew.tell_seated(Final(number=permit.watermark.number))
        self._seating.grant_all()

    def _dismiss_leaving(self) -> None:
        """Not during the recovery: the end of a process takes CPU time that the redone step needs."""
        for trainer in self.crew.leaving():
            self.crew.send_away(trainer, "its node is a spare no more")

    # --- leaving on purpose ------------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        """Also when the coordinator is gone that asked them to stand: nobody else knows what for."""
        if self._standing:
            self._standing = False
            self.crew.tell_seated(Proceed(generation=self.generation))

    def _ask_to_leave(self, reason: str) -> None:
        """At once, if it is asked twice, or if there is nobody who could take over what is here."""
        if self._leave is not None or not self._reach.is_welcome:
            self._end(reason, failed=True)
            return
        self._leave = Leave(reason=reason)
        self._to_coordinator(self._leave)

    # --- fence -------------------------------------------------------------------------------------------------------

    def _fence(self, fence: Fence, now: float) -> None:
        """Rule 12. Nothing is captured, sealed, sent or overwritten from here until the plan."""
        if self.settings is None or (self.fenced and fence.generation == self.generation):
            return
        self.generation, self._cause = fence.generation, fence.cause
        self.fenced, self._acked = True, False
        self._seating.fence()
        self._prompts.fence()
        self.store.fence(fence.generation)
        self.costs.clear()
        self.efforts.clear()
        self._told_costs.forget()
        self._told_efforts.forget()
        self._standing = False
        for trainer in list(self.crew.seated()):
            self._halt(trainer, fence)
        self._halt_deadline = now + self.settings.unwind_s
        self._effects.append(CutStreams(generation=fence.generation))

    def _halt(self, trainer: Trainer, fence: Fence) -> None:
        if trainer.has_state:
            trainer.halting, trainer.live = True, None
            self.crew.tell(trainer, Halt(generation=fence.generation, cause=fence.cause))
        elif trainer.under_real_groups:
            trainer.halting = True  # nothing to keep, and no step boundary to come back to
            self.crew.kill(trainer, "fenced before its first step")
        elif trainer.store is not None:
            trainer.state = State.REHEARSING  # a newcomer goes on building for its rank; the plan may seat it again
        else:
            trainer.state, trainer.rank = State.STARTING, None

    def _cut(self, generation: Generation) -> None:
        self._streams_cut = max(self._streams_cut, generation)
        if self.fenced and generation == self.generation:
            self.store.streams_ended()
        self._maybe_ack()

    def _maybe_ack(self) -> None:
        """Frozen: streams cut, trainers at rest, nobody writes into a slot."""
        if not self.fenced or self._acked or self._streams_cut < self.generation:
            return
        if not self.crew.at_rest() or not self.store.is_quiet():
            return
        self._acked, self._halt_deadline = True, None
        inventory = self.store.inventory(self.crew.lives())
        self._to_coordinator(FenceAck(generation=self.generation, inventory=inventory, hung=tuple(self._hung)))

    # --- plan --------------------------------------------------------------------------------------------------------

    def _carry_out(self, plan: Plan) -> None:
        if self.settings is None or (plan.generation == self.generation and not self.fenced):
            return  # said twice
        self.generation, self._cause, self.fenced = plan.generation, plan.cause, False
        self._hung.clear()
        afresh = plan.resume is None or self._witness.has_missed(plan)
        if self._witness.has_missed(plan):
            self._prompts.forget_own()
        self.store.adopt(plan)
        self._witness.planned(plan, self.settings.layout)
        self.costs.begin(plan.permit.schedule)
        self._to_coordinator(PlanAck(generation=plan.generation))
        if plan.resume is None:
            self._prompts.void(plan.generation)
        if not plan.orders and any(self.crew.seated()):
            self._prompts.clear()  # its ranks are others': it is told anew what it needs
        self._seating.carry_out(plan, afresh=afresh)
        if self.spare and plan.orders:
            self.crew.retire(keep=self.standby)
        self._report_trainers()

    # --- news from trainers ------------------------------------------------------------------------------------------

    def _hear(self, name: str, message: Any, now: float) -> None:
        trainer = self.crew.trainers.get(name)
        if trainer is None:
            return
        generation = getattr(message, "generation", self.generation)
        if generation != self.generation:
            return  # older news
        match message:
            case TrainerHello(store=store):
                self.crew.welcome(name, store)
                self.crew.tell(trainer, self.settings)
                if trainer.state is State.SEATED and not self.fenced:
                    self._seating.process_came(trainer)
                self._report_trainers()
            case Parked(rank=rank, geometry=geometry) if trainer.state is State.REHEARSING and rank == trainer.rank:
                trainer.state = State.PARKED
                self.store.reserve(rank, geometry)
                self._report_trainers()
            case Failed(error=error):
                trainer.last_words = f"script: {error}"
            case DeviceLost(error=error):
                trainer.last_words = f"device: {error}"
            case Report():
                self._to_coordinator(message)
            case _ if trainer.state is State.SEATED and trainer.rank is not None:
                self._hear_seated(trainer, trainer.rank, message, now)

    def _hear_seated(self, trainer: Trainer, rank: int, message: Any, now: float) -> None:
        match message:
            case Halted(live=live):
                trainer.halting, trainer.live = False, live
                self.store.writer_ended(rank)
                self._maybe_ack()
            case Declare(geometry=geometry, peers=peers):
                trainer.has_state = trainer.has_state or not self.fenced
                self.store.declare(rank, geometry, peers)  # fenced or not: it will not be said again
                self._seating.grant_all()
            case Captured() if not self.fenced:
                self.store.captured(rank, message)
            case Missed() | Connected() | Finished() | Standing() if not self.fenced:
                self._to_coordinator(message)
                if isinstance(message, Missed):
                    self.costs.missed(rank, message)
            case Prepared() if not self.fenced:
                trainer.has_state = True
                self._to_coordinator(message)
            case Stepped(number=number):
                trainer.step = number
                self.costs.stepped(rank, message, now)
                self.efforts.stepped(rank, message)
            case Paused(reason=reason):
                trainer.paused = reason
            case Hung(found=found):
                self._hung.append((rank, found))
            case Prompts():
                self._prompts.keep(message)
                self._to_coordinator(message)
            case Durable():
                self._durable = message
                self._to_coordinator(message)
            case Spoilt(version=version):
                self.store.spoil(rank, version)
                self._to_coordinator(replace(message, node=self.node))
                self._seating.lost(rank, f"this node's copy of {version} is not as it was sealed")

    # --- trainers come and go ----------------------------------------------------------------------------------------

    def _exited(self, name: str, code: int, reason: str) -> None:
        trainer = self.crew.dismiss(name)
        if trainer is None or trainer.state is State.LEAVING:
            return  # one that was told to go, or would have been
        reason = trainer.last_words or reason
        if trainer.state is State.SEATED and trainer.rank is not None:
            self._seat_emptied(trainer, trainer.rank, code, reason)
        else:
            self._free_trainer_exited(trainer, reason)
        self._report_trainers()

    def _seat_emptied(self, trainer: Trainer, rank: int, code: int, reason: str) -> None:
        self.store.writer_ended(rank)
        if trainer.released or (code == 0 and not self.fenced):
            self._to_coordinator(Ended(generation=self.generation, rank=rank, code=code))
            return
        self.crew.hire()
        if self.fenced:
            self._maybe_ack()
        else:
            self._seating.lost(rank, reason, trainer.name)

    def _free_trainer_exited(self, trainer: Trainer, reason: str) -> None:
        if trainer.state is State.REHEARSING:
            self.crew.rehearsal_failed = True
        self.crew.failed_starts += trainer.state is State.STARTING
        self._to_coordinator(TrainerLost(generation=self.generation, trainer=trainer.name, rank=None, reason=reason))
        if self.crew.failed_starts >= START_ATTEMPTS:
            self._end(f"trainer processes do not start on node {self.node}: {reason}", failed=True)
        else:
            self.crew.hire()

    # --- time and the end --------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        if self._halt_deadline is not None and now >= self._halt_deadline:
            self._halt_deadline = None
            self._end_restless()
        if self._heartbeat_due is not None and now >= self._heartbeat_due and self.settings is not None:
            self._heartbeat_due = now + self.settings.heartbeat_s
            self._beat()
            self.store.retry()
        self._look_for_coordinator(now)

    def _look_for_coordinator(self, now: float) -> None:
        match self._reach.look(now):
            case Verdict.SILENT:
                self._effects.append(LookElsewhere(reason="the coordinator is silent"))
            case Verdict.ISOLATED:
                self._isolate()
            case Verdict.FORSAKEN:
                self._end(f"node {self.node} found no coordinator, also after it had ended its trainers", failed=True)

    def _isolate(self) -> None:
        """Rule 19. The others have gone on without these ranks, or wait for them in vain; what they left is kept."""
        assert self.settings is not None
        reason = f"no coordinator for {self.settings.isolation_s:g} s"
        self._emit("isolated", reason=reason)
        for trainer in self.crew.seated():
            self.crew.kill(trainer, reason)

    def _end_restless(self) -> None:
        assert self.settings is not None
        for trainer in self.crew.trainers.values():
            if trainer.halting:
                self.crew.kill(trainer, "did not come to rest in time")
                if trainer.has_state and trainer.rank is not None:  # else it was told to go, not to rest
                    self._hung.append((trainer.rank, f"did not come to rest within {self.settings.unwind_s:g} s"))

    def _beat(self) -> None:
        in_loop = [(t.rank, t) for t in self.crew.seated() if t.rank is not None and t.has_state]
        steps = tuple((rank, trainer.step) for rank, trainer in in_loop)
        paused = tuple((rank, trainer.paused) for rank, trainer in in_loop if trainer.paused is not None)
        self._to_coordinator(
            Heartbeat(
                generation=self.generation,
                steps=steps,
                paused=paused,
                costs=self._told_costs.news(self.costs.told()),
                efforts=self._told_efforts.news(self.efforts.told()),
            )
        )

    def _end(self, reason: str, *, failed: bool) -> None:
        self.ending = True
        for trainer in self.crew.trainers.values():
            self.crew.tell(trainer, End(reason=reason))
            self.crew.kill(trainer, reason)
        self._effects.append(Finish(failed=failed, reason=reason))

    # --- small words -------------------------------------------------------------------------------------------------

    def _to_coordinator(self, message: Any) -> None:
        self._effects.append(ToCoordinator(message=message))

    def _report_trainers(self) -> None:
        self._to_coordinator(Trainers(trainers=self.crew.infos()))

    def _emit(self, what: str, *, rank: int | None = None, step: int | None = None, **detail: Any) -> None:
        event = Event(
            what=what,
            cause=self._cause or None,
            generation=str(self.generation),
            node=self.node,
            rank=rank,
            step=step,
            detail=detail,
        )
        self._effects.append(Emit(event=event))
