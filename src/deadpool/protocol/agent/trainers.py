"""A node's trainer processes: what each is doing and is told, and which one takes a seat."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from deadpool.events import Event
from deadpool.protocol.effects import AgentEffect, Emit, KillTrainer, StartTrainer, ToTrainer
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Detach, Live, TrainerInfo
from deadpool.protocol.topology import Address

EARLIER_START = "its rehearsal is of an earlier start"


class State(Enum):
    STARTING = "starting"  # the process exists, it has not said hello
    IDLE = "idle"  # torch is imported, the script has not begun
    COLD = "cold"  # as idle, but a rehearsal of this script failed here: it is not asked again
    REHEARSING = "rehearsing"
    PARKED = "parked"  # built, dry-run, waiting
    SEATED = "seated"
    LEAVING = "leaving"  # its node is a spare no more; it goes once the recovery is over


@dataclass(slots=True)
class Trainer:
    name: str
    state: State = State.STARTING
    rank: int | None = None  # held if seated, rehearsed if rehearsing or parked, to be rehearsed if starting
    begun: bool = False  # the script, or will before it hears anything else: it can be no other rank any more
    told_of: Generation | None = None  # the start of which it was told recordings, if any
    store: Address | None = None
    under_real_groups: bool = False  # seated at the start of a job: cannot be moved to another rank
    live: Live | None = None  # what it rests at; None while it runs or if it never had state
    arriving_in: Generation | None = None  # the generation whose Arriving it has been told
    restored_in: Generation | None = None  # the generation whose Restore it has been told
    has_state: bool = False  # stands in its training loop: a fence must wait for it to come to rest
    halting: bool = False
    released: bool = False
    last_words: str | None = None  # why it is about to end: it was the script, or the device
    paused: str | None = None  # why no step is to be expected of it
    step: int = 0
    attached: set[int] = field(default_factory=set)  # segments whose descriptor it has

    def stands_at(self, version: Version) -> bool:
        return self.live is not None and self.live.clean and self.live.version == version

    def info(self) -> TrainerInfo:
        return TrainerInfo(trainer=self.name, state=self.state.value, rank=self.rank)


class Crew:
    """Trainer processes by name. Names are never reused: news of a dead one cannot be taken for its successor's."""

    def __init__(self, node: str, out: list[AgentEffect]) -> None:
        self._node, self._out = node, out
        self._count = 0
        self.trainers: dict[str, Trainer] = {}
        self.failed_starts = 0
        self.rehearsal_failed = False

    def hire(self, rank: int | None = None) -> Trainer:
        """A fresh process. `rank`: what it is to rehearse as soon as it is there."""
        name = f"{self._node}.{self._count}"
        self._count += 1
        self.trainers[name] = Trainer(name, rank=rank)
        self._out.append(StartTrainer(trainer=name))
        return self.trainers[name]

    def dismiss(self, name: str) -> Trainer | None:
        return self.trainers.pop(name, None)

    def kill(self, trainer: Trainer, reason: str) -> None:
        """It stays one of the crew until its process has ended."""
        self._out.append(KillTrainer(trainer=trainer.name, reason=reason))

    def send_away(self, trainer: Trainer, reason: str) -> None:
        """Nothing it says or does from here on counts."""
        self.dismiss(trainer.name)
        self.kill(trainer, reason)

    def tell(self, trainer: Trainer, message: Any) -> None:
        if trainer.store is not None:  # it has said hello
            self._out.append(ToTrainer(trainer=trainer.name, message=message))

    def tell_seated(self, message: Any) -> None:
        for trainer in self.seated():
            self.tell(trainer, message)

    def detach(self, segment: int) -> None:
        """Whoever has mapped a segment keeps its memory, whatever the agent does with it."""
        for trainer in self.trainers.values():
            if segment in trainer.attached:
                trainer.attached.remove(segment)
                self.tell(trainer, Detach(segment=segment))

    def welcome(self, name: str, store: Address) -> Trainer | None:
        trainer = self.trainers.get(name)
        if trainer is None or trainer.state not in (State.STARTING, State.SEATED):
            return None
        if trainer.state is State.STARTING:
            trainer.state = State.COLD if self.rehearsal_failed else State.IDLE
            trainer.rank = None if self.rehearsal_failed else trainer.rank
        trainer.store = store
        self.failed_starts = 0
        return trainer

    def holder_of(self, rank: int) -> Trainer | None:
        return next((t for t in self.seated() if t.rank == rank), None)

    def seated(self) -> Iterator[Trainer]:
        return (t for t in list(self.trainers.values()) if t.state is State.SEATED)

    def free(self) -> list[Trainer]:
        return [t for t in self.trainers.values() if t.state not in (State.SEATED, State.LEAVING)]

    def take_for(self, rank: int) -> Trainer:
        """The free trainer that would be ready soonest for this rank, or a fresh one. A process that has begun the
        script as another rank keeps what that rank left in it, so it is none of them: one makes room for the fresh."""
        fit = [t for t in self.free() if t.rank == rank or not t.begun]
        if fit:
            return min(fit, key=lambda t: _distance(t, rank))
        for trainer in self.free()[:1]:
            self._tell_end(trainer, f"it has begun the script as rank {trainer.rank}, and rank {rank} is needed")
            trainer.state = State.LEAVING
        return self.hire()

    def replace(self, trainer: Trainer, reason: str, *, rank: int | None) -> None:
        """A fresh process comes in its place, for this rank. A fork of the fork_server takes milliseconds."""
        self._tell_end(trainer, reason)
        self.send_away(trainer, reason)
        self.hire(rank)

    def _tell_end(self, trainer: Trainer, reason: str) -> None:
        detail = {"trainer": trainer.name, "reason": reason}
        self._out.append(Emit(event=Event(what="rehearsal_ended", node=self._node, rank=trainer.rank, detail=detail)))

    def replace_rehearsals(self, *, but: Collection[int] = ()) -> None:
        """The script begins anew, or has: what they were told is of an earlier start, but for these ranks."""
        for trainer in self.free():
            if trainer.begun and trainer.rank not in but:
                self.replace(trainer, EARLIER_START, rank=trainer.rank)

    def retire(self, keep: int) -> None:
        """All but `keep` of the free ones are needed no more."""
        for trainer in self.free()[keep:]:
            trainer.state = State.LEAVING

    def leaving(self) -> list[Trainer]:
        return [t for t in self.trainers.values() if t.state is State.LEAVING]

    def lives(self) -> tuple[Live, ...]:
        return tuple(t.live for t in self.seated() if t.live is not None)

    def at_rest(self) -> bool:
        return not any(t.halting for t in self.trainers.values())

    def infos(self) -> tuple[TrainerInfo, ...]:
        return tuple(t.info() for t in self.trainers.values())


def _distance(trainer: Trainer, rank: int) -> int:
    """Of those that can be this rank. A process that is there is nearer than one that is still to come."""
    match trainer.state, trainer.rank == rank:
        case State.PARKED, _:
            return 0
        case State.REHEARSING, True:
            return 1
        case State.STARTING, True:
            return 3
        case State.STARTING, False:
            return 4
        case _:
            return 2
