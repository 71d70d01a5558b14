"""What a node's trainers report, and what follows when one ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from msgspec.structs import replace

from deadpool.protocol.agent.leadership.heartbeat import Heartbeats
from deadpool.protocol.agent.seams import AgentPart
from deadpool.protocol.agent.state import AgentState
from deadpool.protocol.agent.trainers.readiness import NodeRecordings
from deadpool.protocol.agent.trainers.seating import Seating
from deadpool.protocol.agent.trainers.trainers import Trainer, TrainerState
from deadpool.protocol.agent.trainers.unwinding import Unwinding
from deadpool.protocol.agent.trainers.watches import EndWatch
from deadpool.protocol.causes import EndCause, FaultKind, Miss
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.messages import (
    Captured,
    Connected,
    CopyLost,
    Declare,
    DeviceLost,
    Digested,
    Ended,
    Exits,
    Failed,
    Finished,
    GroupsDestroyed,
    Halted,
    Hung,
    Missed,
    Parked,
    Paused,
    Pong,
    Prepared,
    Recording,
    Rehearse,
    Report,
    Standing,
    Stepped,
    TrainerHello,
    TrainerLost,
    TrainerMessage,
    Waits,
)

START_ATTEMPTS = 3

SeatedMessage = (
    Recording | Declare | Captured | Missed | Halted | Prepared | Connected | Stepped | Paused | Waits | Standing
    | Finished | GroupsDestroyed | Exits | Pong | Hung | Digested | CopyLost
)  # fmt: skip
"""What counts only from a trainer that has a seat."""


class TrainerNews:
    def __init__(
        self,
        state: AgentState,
        *,
        unwinding: Unwinding,
        seating: Seating,
        heartbeats: Heartbeats,
        recordings: NodeRecordings,
        end_watch: EndWatch,
        features: Sequence[AgentPart],
    ) -> None:
        self._state, self._unwinding, self._seating, self._end_watch = state, unwinding, seating, end_watch
        self._heartbeats, self._recordings, self._features = heartbeats, recordings, features
        self._current, self._trainers, self._copies = state.current, state.trainers, state.copies

    # --- messages ----------------------------------------------------------------------------------------------------

    def on_message(self, name: str, message: TrainerMessage, now: float) -> None:
        trainer = self._trainers.by_name.get(name)
        if trainer is None:
            return
        if getattr(message, "generation", self._current.generation) != self._current.generation:
            return  # of a generation that is over
        match message:
            case TrainerHello(store=store):
                self._trainers.on_hello(name, store)
                assert self._state.settings is not None, "no trainer is started before a coordinator has answered"
                self._trainers.tell(trainer, self._state.settings)
                self._on_ready(trainer)
                self._state.report_trainers()
            case Parked(rank=rank, geometry=geometry, device_bytes=device_bytes):
                if trainer.state is TrainerState.REHEARSING and rank == trainer.rank:
                    trainer.state, trainer.device_bytes = TrainerState.PARKED, device_bytes
                    self._copies.reserve(rank, geometry)
                    self._state.report_trainers()
            case Failed(error=error, unfit=True):
                self._leave(trainer, error)
            case Failed(error=error, inexact=True):
                trainer.exit_reason, trainer.exit_kind = error, FaultKind.INEXACT
            case Failed(error=error):
                trainer.exit_reason, trainer.exit_kind = f"script: {error}", FaultKind.SCRIPT
            case DeviceLost(error=error):
                trainer.exit_reason, trainer.exit_kind = f"device: {error}", FaultKind.DEVICE
            case FeatureMessage():
                for part in self._features:
                    part.on_trainer_message(trainer, message)
            case Report():
                self._state.tell_coordinator(message)
            case _:
                if trainer.state is TrainerState.SEATED and trainer.rank is not None:
                    self._on_seated_message(trainer, trainer.rank, message, now)

    def _on_ready(self, trainer: Trainer) -> None:
        if trainer.state is TrainerState.SEATED and not self._current.is_fenced:
            self._seating.on_trainer_ready(trainer)
        elif trainer.state is TrainerState.IDLE and trainer.rank is not None:
            generation, rank = self._current.generation, trainer.rank
            self._recordings.begin_rehearsal(trainer, Rehearse(generation=generation, trainer=trainer.name, rank=rank))

    def _on_seated_message(self, trainer: Trainer, rank: int, message: SeatedMessage, now: float) -> None:
        state, unfenced = self._state, not self._current.is_fenced
        match message:
            # steps and captures
            case Stepped(number=number, step_s=step_s):
                trainer.step, trainer.step_s = number, step_s
                for each in trainer.ranks:
                    self._heartbeats.on_stepped(each, message, now)
            case Paused(reason=reason):
                trainer.paused = reason
            case Waits(what=what):
                trainer.waits_for = what
            case Declare(geometry=geometry, peers=peers):
                trainer.has_state = trainer.has_state or unfenced
                self._copies.declare(rank, geometry, peers)  # fenced or not: the trainer will not send it again
                self._seating.declare_further(trainer)
                self._seating.grant_slots()
            case Captured() if unfenced:
                self._copies.on_captured(rank if message.rank is None else message.rank, message)
            case Missed() if unfenced:
                state.tell_coordinator(message)
                self._heartbeats.on_missed(rank, message)
                if message.cause is Miss.NO_SLOT:
                    self._copies.on_no_slot(rank)
            case Recording():
                self._recordings.on_own_recording(message)
                state.tell_coordinator(message)
            case Digested() if unfenced:
                state.tell_coordinator(message)
            # a recovery, in its order
            case Hung(found=found):
                self._unwinding.report_hung(rank, found)
            case Halted(live=live):
                trainer.halting, trainer.live = False, live
                self._free_grants(trainer)
                self._unwinding.acknowledge_if_frozen()
            case CopyLost(rank=damaged, version=version):
                self._copies.drop_damaged(damaged, version)
                state.tell_coordinator(replace(message, node=state.node))
                reason = f"this node's copy of {version} is not as it was sealed"
                self._seating.report_lost(rank, FaultKind.DAMAGED, reason)
            case Prepared() if unfenced:
                trainer.has_state = True
                self._seating.readiness.on_prepared(message, trainer.further_ranks)
            case Connected() if unfenced:
                self._seating.readiness.on_connected(message, trainer.further_ranks)
            case Standing() | Finished() if unfenced:
                self._tell_of_all(trainer, message)
            # the end of the script
            case Exits(code=code):
                trainer.asked_code = code
            case GroupsDestroyed():
                trainer.groups_destroyed = trainer.released
            case Pong():
                self._end_watch.on_pong(trainer, now)
            case Captured() | Missed() | Digested() | Prepared() | Connected() | Standing() | Finished():
                pass  # under a fence: it was said before the trainer heard of it
            case _ as never:
                assert_never(never)

    def _tell_of_all(self, trainer: Trainer, message: Ended | Standing | Finished) -> None:
        """All ranks whose work one process does are at the same point."""
        self._state.tell_coordinator(message)
        for rank in trainer.further_ranks:
            self._state.tell_coordinator(replace(message, rank=rank))

    def _free_grants(self, trainer: Trainer) -> None:
        for rank in trainer.ranks:
            self._copies.on_writer_ended(rank)

    # --- when one ends -----------------------------------------------------------------------------------------------

    def on_exit(self, name: str, code: int, reason: str) -> None:
        trainer = self._trainers.remove(name)
        if trainer is None or trainer.state is TrainerState.LEAVING:
            return  # it was killed on purpose, or would have been
        reason = trainer.exit_reason or reason
        if trainer.state is TrainerState.SEATED and trainer.rank is not None:
            self._on_seated_exit(trainer, trainer.rank, code, reason)
        else:
            self._on_free_exit(trainer, reason)
        self._state.report_trainers()

    def _leave(self, trainer: Trainer, reason: str) -> None:
        """Ends this node: as long as it is there, the job counts on it."""
        state = self._state
        state.tell_coordinator(TrainerLost(generation=None, trainer=trainer.name, rank=None, reason=reason))
        state.end(EndCause.UNFIT, f"node {state.node} cannot take part in this job: {reason}", failed=True)

    def _on_seated_exit(self, trainer: Trainer, rank: int, code: int, reason: str) -> None:
        fenced = self._current.is_fenced
        self._free_grants(trainer)
        if trainer.released or (code == 0 and not fenced):
            code = code if trainer.exit_code is None else trainer.exit_code
            self._tell_of_all(trainer, Ended(generation=self._current.generation, rank=rank, code=code))
            return
        self._trainers.start()
        if fenced:
            self._unwinding.acknowledge_if_frozen()
        else:
            self._seating.report_lost(rank, trainer.exit_kind, reason, trainer.name)

    def _on_free_exit(self, trainer: Trainer, reason: str) -> None:
        state, trainers = self._state, self._trainers
        if trainer.state is TrainerState.REHEARSING and trainer.begun:
            trainers.rehearsal_failed = True
        trainers.failed_starts += trainer.state is TrainerState.STARTING
        lost = TrainerLost(generation=None, trainer=trainer.name, rank=None, reason=reason)
        state.tell_coordinator(lost)
        if trainers.failed_starts >= START_ATTEMPTS:
            state.end(EndCause.NO_STARTS, f"trainer processes do not start on node {state.node}: {reason}", failed=True)
        else:
            trainers.start()
