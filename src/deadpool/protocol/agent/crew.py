"""A node's trainer processes: what each is doing and is told, and which one takes a seat."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from deadpool.protocol.effects import AgentEffect, KillTrainer, StartTrainer, ToTrainer
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Detach, Live, TrainerInfo
from deadpool.protocol.topology import Address


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
    rank: int | None = None  # held if seated, rehearsed if rehearsing or parked
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

    def hire(self) -> Trainer:
        name = f"{self._node}.{self._count}"
        self._count += 1
        self.trainers[name] = Trainer(name)
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
        trainer.store = store
        self.failed_starts = 0
        return trainer

    def holder_of(self, rank: int) -> Trainer | None:
        return next((t for t in self.seated() if t.rank == rank), None)

    def seated(self) -> Iterator[Trainer]:
        return (t for t in list(self.trainers.values()) if t.state is State.SEATED)

    def pick_for(self, rank: int) -> Trainer | None:
        """The free trainer that would be ready soonest for this rank."""
        free = [t for t in self.trainers.values() if t.state not in (State.SEATED, State.LEAVING)]
        return min(free, key=lambda t: _distance(t, rank), default=None)

    def replace_rehearsals(self, *, but: Collection[int]) -> None:
        """What they were told is of an earlier start, but for these ranks: who rehearses one of those begins again."""
        for trainer in list(self.trainers.values()):
            if trainer.state in (State.REHEARSING, State.PARKED) and trainer.rank not in but:
                self.send_away(trainer, "its rehearsal is of an earlier start")
                self.hire()

    def retire(self, keep: int) -> None:
        """All but `keep` of the free ones are needed no more."""
        free = [t for t in self.trainers.values() if t.state not in (State.SEATED, State.LEAVING)]
        for trainer in free[keep:]:
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
    """A rehearsal of the right rank is worth waiting for; one of another rank has to run to its end first."""
    match trainer.state, trainer.rank == rank:
        case State.PARKED, True:
            return 0
        case State.REHEARSING, True:
            return 1
        case State.PARKED, False:
            return 2
        case ((State.IDLE | State.COLD), _):
            return 3
        case State.REHEARSING, False:
            return 4
        case _:
            return 5
