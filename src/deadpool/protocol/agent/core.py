"""An agent's decisions: the door through which all its news comes, and who hears it. No I/O; `step` is the only door.

Trainers are processes that come and go; ranks are seats that stay. Which process takes a seat of this node is decided
here, never by the coordinator. What the agent knows is in `state.py`; it has three to listen to:

    orders         of its coordinator       allegiance: whom it follows     service: coordinators come and go
    trainer_news   of its processes         crew: who they are              vitals: what heartbeats say of them
    data_news      of its data plane        storehouse: its copies

and its part in a recovery, in order:

    unwinding      streams cut, trainers at rest, inventory frozen
    seating        which process takes each seat, from where its state comes
"""

from __future__ import annotations

from deadpool.protocol.agent.capture_costs import CostBook
from deadpool.protocol.agent.coordinator_session import Service
from deadpool.protocol.agent.copies import Storehouse
from deadpool.protocol.agent.data_news import DataNews
from deadpool.protocol.agent.heartbeat import Vitals
from deadpool.protocol.agent.orders import Orders
from deadpool.protocol.agent.protection_watch import ProtectionWatch
from deadpool.protocol.agent.recorded_collectives import NodeRecordings
from deadpool.protocol.agent.seating import Seating
from deadpool.protocol.agent.state import Station
from deadpool.protocol.agent.term_guard import Allegiance
from deadpool.protocol.agent.trainer_news import TrainerNews
from deadpool.protocol.agent.trainers import Crew
from deadpool.protocol.agent.unwinding import Unwinding
from deadpool.protocol.effects import (
    AgentEffect,
    AgentInput,
    CoordinatorFound,
    CoordinatorLost,
    FromCoordinator,
    FromTrainer,
    LeaveAsked,
    ReleaseSegment,
    Stalled,
    StopAsked,
    Tick,
    ToCoordinator,
    TrainerExited,
)
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Plan
from deadpool.protocol.quorum import Footing
from deadpool.protocol.times import earliest


class Agent:
    def __init__(self, *, node: str, standby: int = 0, spare: bool = False, rehearsals: int = 1) -> None:
        """A spare node keeps `rehearsals` trainers for each of its seats, so that more ranks are rehearsed."""
        self._station = station = Station(node)
        self._allegiance = allegiance = Allegiance()
        self._vitals = vitals = Vitals(station)
        recordings = NodeRecordings(station.crew)
        self._seating = seating = Seating(station.crew, station.store, recordings, station.effects)
        self._unwinding = unwinding = Unwinding(station, seating)
        self._service = Service(
            station,
            allegiance,
            vitals=vitals,
            recordings=recordings,
            rehearsals=rehearsals if spare else 1,
            standby=0 if spare else standby,
        )
        self._orders = Orders(
            station,
            service=self._service,
            unwinding=unwinding,
            seating=seating,
            vitals=vitals,
            recordings=recordings,
            witness=allegiance.witness,
            standby=standby,
            spare=spare,
        )
        self._trainer_news = TrainerNews(
            station, unwinding=unwinding, seating=seating, vitals=vitals, recordings=recordings
        )
        self._protection = ProtectionWatch(station)
        self._data_news = DataNews(station, unwinding=unwinding, seating=seating)

    # --- the contract of a core --------------------------------------------------------------------------------------

    def step(self, input: AgentInput, *, now: float) -> list[AgentEffect]:
        if not self._station.ending:
            self._dispatch(input, now)
        for effect in tuple(self._station.effects):
            if isinstance(effect, ToCoordinator):
                self._allegiance.witness.told(effect.message)
            elif isinstance(effect, ReleaseSegment):
                self.crew.detach(effect.segment)
        return self._station.take()

    def deadline(self) -> float | None:
        if self._station.ending:
            return None
        return earliest(self._unwinding.deadline, earliest(self._vitals.due, self._allegiance.reach.deadline()))

    def check(self) -> None:
        ranks = [trainer.rank for trainer in self.crew.seated()]
        assert len(ranks) == len(set(ranks)), ranks
        assert not (self.fenced and self.store.lanes), "a copy is on its way under a fence"

    # --- for whoever asks --------------------------------------------------------------------------------------------

    @property
    def footing(self) -> Footing:
        """For the Join that begins every link."""
        return self._allegiance.footing(self.generation)

    @property
    def generation(self) -> Generation:
        return self._station.generation

    @property
    def fenced(self) -> bool:
        return self._station.fenced

    @property
    def plan(self) -> Plan | None:
        """The last that was carried out here, with all its parts."""
        return self._seating.plan

    @property
    def crew(self) -> Crew:
        return self._station.crew

    @property
    def store(self) -> Storehouse:
        return self._station.store

    @property
    def costs(self) -> CostBook:
        return self._vitals.costs

    # --- who hears what ----------------------------------------------------------------------------------------------

    def _dispatch(self, input: AgentInput, now: float) -> None:
        reach = self._allegiance.reach
        match input:
            case CoordinatorFound(patience=patience):
                reach.found(now, patience)
            case FromCoordinator(term=term, message=message):
                if self._allegiance.admits(term, message):
                    reach.heard(now)
                    self._orders.obey(message, now)
            case CoordinatorLost():
                self._service.lost(now)
            case FromTrainer(trainer=name, message=message):
                self._trainer_news.hear(name, message, now)
            case TrainerExited(trainer=name, code=code, reason=reason):
                self._trainer_news.exited(name, code, reason)
            case Tick():
                self._look_at_deadlines(now)
            case Stalled(seconds=seconds):
                reach.excuse(seconds)
                self._look_at_deadlines(now)  # what is due is due all the same: others wait for our heartbeat
            case StopAsked(reason=reason):
                self._station.end(reason, failed=True)
            case LeaveAsked(reason=reason):
                self._service.ask_to_leave(reason)
            case _:
                self._data_news.hear(input)

    def _look_at_deadlines(self, now: float) -> None:
        self._unwinding.look(now)
        if self._vitals.look(now):
            self.store.retry()
            self._protection.look(now)
        self._service.look(now)
