"""An agent's decisions: `step` takes every input and hands it to the part that decides. No I/O.

Trainers are processes that come and go; ranks are seats that stay. The agent, never the coordinator, decides which
process of its node takes a seat. What all parts share is in `state.py`. Inputs have three sources:

    orders         from the coordinator     coordinator_liveness: whose orders count; coordinator_session: they change
    trainer_news   from the trainers        trainers: the processes; heartbeat: what is reported of them
    data_news      from the data plane      copies, slots, pushes: the node's copies

A recovery passes through two parts, in this order:

    unwinding      streams are cut, trainers come to rest, the inventory is frozen
    seating        each seat gets a process and its state
"""

from __future__ import annotations

from deadpool.protocol.agent.copies.capture_costs import CaptureCosts
from deadpool.protocol.agent.copies.copies import Copies
from deadpool.protocol.agent.copies.data_news import DataNews
from deadpool.protocol.agent.copies.slot_growth import NodeMemory
from deadpool.protocol.agent.leadership.coordinator_liveness import ReachedNodes, TermGuard
from deadpool.protocol.agent.leadership.coordinator_session import CoordinatorSession
from deadpool.protocol.agent.leadership.heartbeat import Heartbeats
from deadpool.protocol.agent.orders import Orders
from deadpool.protocol.agent.phase import AgentPhase
from deadpool.protocol.agent.seams import AgentCore
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.readiness import NodeRecordings
from deadpool.protocol.agent.trainers.rehearsal_growth import RehearsalGrowth
from deadpool.protocol.agent.trainers.seating import Seating
from deadpool.protocol.agent.trainers.trainer_news import TrainerNews
from deadpool.protocol.agent.trainers.trainers import NodeTrainers
from deadpool.protocol.agent.trainers.unwinding import Unwinding
from deadpool.protocol.agent.trainers.watches import ActivityWatch, EndWatch, ProtectionWatch
from deadpool.protocol.causes import EndCause
from deadpool.protocol.effects import AgentEffect, ReleaseSegment, ToCoordinator, earliest
from deadpool.protocol.features import registry
from deadpool.protocol.identity import Generation
from deadpool.protocol.inputs import (
    AgentInput,
    CoordinatorFound,
    CoordinatorLost,
    FeatureInput,
    FromCoordinator,
    FromTrainer,
    LeaveAsked,
    MemorySeen,
    PeersProbed,
    RehearsalMeasured,
    Stalled,
    StopAsked,
    Tick,
    TrainerActivity,
    TrainerExited,
)
from deadpool.protocol.messages import Plan
from deadpool.protocol.quorum import Footing


class Agent:
    def __init__(
        self,
        *,
        node: str,
        standby: int = 0,
        spare: bool = False,
        rehearsals: int = 1,
        shared: bool = False,
        works: bool = False,
    ) -> None:
        """A spare node keeps `rehearsals` trainers for each of its seats, so that it can rehearse several ranks; 0: as
        many as memory allows.
        `shared`: its machine may serve other jobs. `works`: there is a command to run while it is parked."""
        self._state = state = AgentState(node, registry.joint_copies())
        self._guard = guard = TermGuard()
        self._heartbeats = heartbeats = Heartbeats(state)
        recordings = NodeRecordings(state.trainers)
        self._seating = seating = Seating(state, recordings)
        core = AgentCore(state=state, seating=seating, recordings=recordings, shared=shared, works=works)
        self.features = features = registry.agent_parts(core)
        self._unwinding = unwinding = Unwinding(state, seating)
        self._session = CoordinatorSession(
            state,
            guard,
            heartbeats=heartbeats,
            features=features,
            recordings=recordings,
            rehearsals=max(1, rehearsals) if spare else 1,
            standby=0 if spare else standby,
        )
        self._reachability = ReachedNodes(state)
        self._orders = Orders(
            state,
            session=self._session,
            unwinding=unwinding,
            seating=seating,
            heartbeats=heartbeats,
            recordings=recordings,
            reachability=self._reachability,
            features=features,
            record=guard.record,
            standby=standby,
            spare=spare,
        )
        self._end_watch = EndWatch(state)
        self._trainer_news = TrainerNews(
            state,
            unwinding=unwinding,
            seating=seating,
            heartbeats=heartbeats,
            recordings=recordings,
            end_watch=self._end_watch,
            features=features,
        )
        grows = spare and not rehearsals and not shared and not works  # else the memory is for others
        self._rehearsal_growth = RehearsalGrowth(state, grows=grows)
        self._protection = ProtectionWatch(state)
        self._activity = ActivityWatch(state, unwinding)
        self._data_news = DataNews(state, unwinding=unwinding, seating=seating, heartbeats=heartbeats)

    # --- the contract of a core --------------------------------------------------------------------------------------

    def step(self, input: AgentInput, *, now: float) -> list[AgentEffect]:
        if self.phase is not AgentPhase.ENDING:
            self._dispatch(input, now)
            for part in self.features:
                part.check(now)
        for effect in tuple(self._state.effects):
            if isinstance(effect, ToCoordinator):
                self._guard.record.on_sent(effect.message)
            elif isinstance(effect, ReleaseSegment):
                self.trainers.detach(effect.segment)
        return self._state.take_effects()

    def deadline(self) -> float | None:
        if self.phase is AgentPhase.ENDING:
            return None
        trainers = earliest(self._unwinding.next_check(), self._activity.deadline())
        trainers = earliest(trainers, self._end_watch.deadline())
        for part in self.features:
            trainers = earliest(trainers, part.deadline())
        return earliest(trainers, earliest(self._heartbeats.due, self._guard.liveness.deadline()))

    def check(self) -> None:
        ranks = [trainer.rank for trainer in self.trainers.seated()]
        assert len(ranks) == len(set(ranks)), ranks
        assert not (self._state.current.is_fenced and self.copies.push_queues), "a copy is on its way under a fence"

    # --- what shells and checkers read -------------------------------------------------------------------------------

    @property
    def footing(self) -> Footing:
        """Every link to a coordinator begins with a Join that carries it."""
        return self._guard.record.footing(self.generation)

    @property
    def generation(self) -> Generation:
        return self._state.current.generation

    @property
    def cause(self) -> str:
        """Why this generation began."""
        return self._state.current.cause

    @property
    def phase(self) -> AgentPhase:
        return self._state.current.phase

    @property
    def plan(self) -> Plan | None:
        """The last plan that was carried out here, with the parts filled in that its message left out."""
        return self._seating.plan

    @property
    def trainers(self) -> NodeTrainers:
        return self._state.trainers

    @property
    def copies(self) -> Copies:
        return self._state.copies

    @property
    def capture_costs(self) -> CaptureCosts:
        return self._heartbeats.capture_costs

    # --- dispatch ----------------------------------------------------------------------------------------------------

    def _dispatch(self, input: AgentInput, now: float) -> None:
        liveness = self._guard.liveness
        match input:
            case CoordinatorFound(patience=patience):
                liveness.on_connected(now, patience)
            case FromCoordinator(term=term, message=message):
                if self._guard.admits(term, message):
                    liveness.on_message(now)
                    self._orders.on_message(message, now)
            case CoordinatorLost():
                self._session.on_link_lost(now)
            case FromTrainer(trainer=name, message=message):
                self._trainer_news.on_message(name, message, now)
            case TrainerExited(trainer=name, code=code, reason=reason):
                self._trainer_news.on_exit(name, code, reason)
            case TrainerActivity(trainer=name, activity=activity):
                self._activity.on_activity(name, activity, now)
            case MemorySeen(total_bytes=total, available_bytes=available):
                memory = NodeMemory(total_bytes=total, available_bytes=available)
                self.copies.growth.on_memory(memory)
                self._rehearsal_growth.on_memory(memory)
            case RehearsalMeasured(trainer=name, memory_bytes=measured):
                self._rehearsal_growth.on_measured(name, measured)
            case FeatureInput():
                for part in self.features:
                    if (plan := part.on_input(input, now)) is not None:
                        self._orders.on_message(plan, now)
            case PeersProbed():
                self._reachability.on_probed(input)
            case Tick():
                self._check_timeouts(now)
            case Stalled(seconds=seconds):
                liveness.extend(seconds)
                self._activity.discount_stall(seconds)
                self._end_watch.discount_stall(seconds)
                self._check_timeouts(now)  # a heartbeat that is due is sent all the same: the coordinator waits for it
            case StopAsked(reason=reason):
                self._state.end(EndCause.ASKED, reason, failed=True)
            case LeaveAsked(reason=reason):
                self._session.ask_to_leave(reason)
            case _:
                self._data_news.on_input(input)

    def _check_timeouts(self, now: float) -> None:
        self._activity.check(now)
        self._end_watch.check(now)
        self._unwinding.check_timeouts(now)
        if self._heartbeats.send_if_due(now):
            self._seating.readiness.tell_so_far()
            for part in self.features:
                part.on_heartbeat(now)
            self.copies.retry()
            self._protection.check(now)
        self._session.check_timeouts(now)
