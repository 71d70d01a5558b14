"""What a node's trainers say, and what follows when one ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deadpool.protocol.agent.heartbeat import Vitals
from deadpool.protocol.agent.recorded_collectives import NodeRecordings
from deadpool.protocol.agent.seating import Seating
from deadpool.protocol.agent.state import Station
from deadpool.protocol.agent.trainers import State, Trainer
from deadpool.protocol.agent.unwinding import Unwinding
from deadpool.protocol.messages import (
    Captured,
    Connected,
    Declare,
    DeviceLost,
    Durable,
    Ended,
    Failed,
    Finished,
    Halted,
    Hung,
    Missed,
    Parked,
    Paused,
    Prepared,
    Recording,
    Rehearse,
    Report,
    Spoilt,
    Standing,
    Stepped,
    TrainerHello,
    TrainerLost,
)

START_ATTEMPTS = 3


class TrainerNews:
    def __init__(
        self, station: Station, *, unwinding: Unwinding, seating: Seating, vitals: Vitals, recordings: NodeRecordings
    ) -> None:
        self._station, self._unwinding, self._seating = station, unwinding, seating
        self._vitals, self._recordings = vitals, recordings
        self._crew, self._store = station.crew, station.store

    # --- what they say -----------------------------------------------------------------------------------------------

    def hear(self, name: str, message: Any, now: float) -> None:
        trainer = self._crew.trainers.get(name)
        if trainer is None:
            return
        generation = getattr(message, "generation", self._station.generation)
        if generation != self._station.generation:
            return  # older news
        match message:
            case TrainerHello(store=store):
                self._crew.welcome(name, store)
                self._crew.tell(trainer, self._station.settings)
                self._process_came(trainer)
                self._station.report_trainers()
            case Parked(rank=rank, geometry=geometry) if trainer.state is State.REHEARSING and rank == trainer.rank:
                trainer.state = State.PARKED
                self._store.reserve(rank, geometry)
                self._station.report_trainers()
            case Failed(error=error):
                trainer.last_words = f"script: {error}"
            case DeviceLost(error=error):
                trainer.last_words = f"device: {error}"
            case Report():
                self._station.tell_coordinator(message)
            case _ if trainer.state is State.SEATED and trainer.rank is not None:
                self._hear_seated(trainer, trainer.rank, message, now)

    def _process_came(self, trainer: Trainer) -> None:
        if trainer.state is State.SEATED and not self._station.fenced:
            self._seating.process_came(trainer)
        elif trainer.state is State.IDLE and trainer.rank is not None:
            generation, rank = self._station.generation, trainer.rank
            self._recordings.begin_rehearsal(trainer, Rehearse(generation=generation, trainer=trainer.name, rank=rank))

    def _hear_seated(self, trainer: Trainer, rank: int, message: Any, now: float) -> None:
        station, running = self._station, not self._station.fenced
        match message:
            # steps and captures
            case Stepped(number=number):
                trainer.step = number
                self._vitals.stepped(rank, message, now)
            case Paused(reason=reason):
                trainer.paused = reason
            case Declare(geometry=geometry, peers=peers):
                trainer.has_state = trainer.has_state or running
                self._store.declare(rank, geometry, peers)  # fenced or not: it will not be said again
                self._seating.grant_all()
            case Captured() if running:
                self._store.captured(rank, message)
            case Missed() if running:
                station.tell_coordinator(message)
                self._vitals.missed(rank, message)
            case Recording():
                self._recordings.keep(message)
                station.tell_coordinator(message)
            case Durable():
                station.durable = message
                station.tell_coordinator(message)
            # a recovery, in its order
            case Hung(found=found):
                self._unwinding.found_hung(rank, found)
            case Halted(live=live):
                trainer.halting, trainer.live = False, live
                self._store.writer_ended(rank)
                self._unwinding.maybe_ack()
            case Spoilt(version=version):
                self._store.spoil(rank, version)
                station.tell_coordinator(replace(message, node=station.node))
                self._seating.lost(rank, f"this node's copy of {version} is not as it was sealed")
            case Prepared() if running:
                trainer.has_state = True
                station.tell_coordinator(message)
            case Connected() | Standing() | Finished() if running:
                station.tell_coordinator(message)

    # --- when one ends -----------------------------------------------------------------------------------------------

    def exited(self, name: str, code: int, reason: str) -> None:
        trainer = self._crew.dismiss(name)
        if trainer is None or trainer.state is State.LEAVING:
            return  # one that was told to go, or would have been
        reason = trainer.last_words or reason
        if trainer.state is State.SEATED and trainer.rank is not None:
            self._seat_emptied(trainer, trainer.rank, code, reason)
        else:
            self._free_trainer_exited(trainer, reason)
        self._station.report_trainers()

    def _seat_emptied(self, trainer: Trainer, rank: int, code: int, reason: str) -> None:
        station = self._station
        self._store.writer_ended(rank)
        if trainer.released or (code == 0 and not station.fenced):
            station.tell_coordinator(Ended(generation=station.generation, rank=rank, code=code))
            return
        self._crew.hire()
        if station.fenced:
            self._unwinding.maybe_ack()
        else:
            self._seating.lost(rank, reason, trainer.name)

    def _free_trainer_exited(self, trainer: Trainer, reason: str) -> None:
        station = self._station
        if trainer.state is State.REHEARSING and trainer.begun:
            self._crew.rehearsal_failed = True
        self._crew.failed_starts += trainer.state is State.STARTING
        lost = TrainerLost(generation=None, trainer=trainer.name, rank=None, reason=reason)
        station.tell_coordinator(lost)
        if self._crew.failed_starts >= START_ATTEMPTS:
            station.end(f"trainer processes do not start on node {station.node}: {reason}", failed=True)
        else:
            self._crew.hire()
