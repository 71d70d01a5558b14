"""A node's trainer processes: what each is doing, what it has been told, and which one takes a seat."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum

from deadpool.events.event import Event
from deadpool.protocol.causes import FaultKind
from deadpool.protocol.effects import AgentEffect, Emit, KillTrainer, StartTrainer, ToTrainer
from deadpool.protocol.identity import Address, Generation, Version
from deadpool.protocol.inputs import Activity
from deadpool.protocol.messages import Detach, Live, Shares, ToTrainerMessage, TrainerInfo

EARLIER_START = "its rehearsal is of an earlier start"


class TrainerState(Enum):
    STARTING = "starting"  # the process exists, it has not said hello
    IDLE = "idle"  # torch is imported, the script has not begun
    COLD = "cold"  # as idle, but a rehearsal of this script failed here: it is not asked again
    REHEARSING = "rehearsing"
    PARKED = "parked"  # built, dry-run, waiting
    SEATED = "seated"
    LEAVING = "leaving"  # the node needs it no more; it is ended once the recovery is over


@dataclass(slots=True)
class Trainer:
    name: str
    state: TrainerState = TrainerState.STARTING
    rank: int | None = None  # held if seated, rehearsed if rehearsing or parked, to be rehearsed if starting
    begun: bool = False  # the script has begun, or will before the next message: it can be no other rank any more
    recorded_start: Generation | None = None  # the start of the job whose recordings it was sent, if any
    store: Address | None = None  # its node's rendezvous store; None: it has not said hello
    under_real_groups: bool = False  # seated at the start of a job: cannot be moved to another rank
    live: Live | None = None  # the version at which it rests; None while it runs or if it never had state
    arriving_in: Generation | None = None  # the generation whose Arriving it has been sent
    restored_in: Generation | None = None  # the generation whose Restore it has been sent
    has_state: bool = False  # it is in its training loop: a fence must wait for it to come to rest
    halting: bool = False
    killed: bool = False  # its process is about to end
    released: bool = False
    groups_destroyed: bool = False  # by its script, after it was released
    asked_code: int | None = None  # with which its script asked to end, if not with 0
    pinged_at: float | None = None  # the question that it has not answered yet
    answered_at: float = 0.0
    exit_code: int | None = None  # that counts instead of its own
    exit_reason: str | None = None  # announced before it ends: the script failed, or the device
    exit_kind: FaultKind = FaultKind.TRAINER
    paused: str | None = None  # why no step is to be expected of it
    step: int = 0
    step_s: float = 0.0  # what the last step took
    waits_for: str = ""  # for a while, by its own word: for other ranks, or for its data
    activity: Activity = Activity.ACTIVE
    activity_changed: float = 0.0
    activity_since: float = 0.0
    memory_bytes: int = 0  # that a parked one takes of the host's memory for itself; 0: not measured yet
    device_bytes: int = 0  # that it has taken of a device's
    attached: set[int] = field(default_factory=set)  # segments whose descriptor it has
    further_ranks: tuple[int, ...] = ()  # without a process of their own: it does their work too
    shares: Shares | None = None  # once its script has asked for its shares of a step

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose work it does, if it has a seat: its own first."""
        return () if self.rank is None else (self.rank, *self.further_ranks)

    def take_back_release(self) -> None:
        """Rule 33 (a fence takes the release back): if it ends now, its rank is to be done by another process."""
        self.released = self.groups_destroyed = False
        self.asked_code = self.pinged_at = None

    def stands_at(self, version: Version) -> bool:
        return self.live is not None and self.live.clean and self.live.version == version

    def idle_s(self, now: float) -> float:
        """Returns for how long the trainer has done nothing at all."""
        return 0.0 if self.activity is Activity.ACTIVE else now - self.activity_since

    def info(self) -> TrainerInfo:
        return TrainerInfo(trainer=self.name, state=self.state.value, rank=self.rank, shares=self.shares)


class NodeTrainers:
    """Trainer processes by name. A name is never used twice, so late news of a dead process cannot be taken for news of
    the one that replaced it."""

    def __init__(self, node: str, out: list[AgentEffect]) -> None:
        self._node, self._out = node, out
        self._count = 0
        self.by_name: dict[str, Trainer] = {}
        self.failed_starts = 0
        self.rehearsal_failed = False
        self.shares_of: dict[int, Shares] = {}  # by rank, as its last process here said: the script is the same

    # --- processes start and end -------------------------------------------------------------------------------------

    def start(self, rank: int | None = None) -> Trainer:
        """Starts a fresh process. It will rehearse `rank` as soon as it is ready, if one is given."""
        name = f"{self._node}.{self._count}"
        self._count += 1
        self.by_name[name] = Trainer(name, rank=rank)
        self._out.append(StartTrainer(trainer=name))
        return self.by_name[name]

    def on_hello(self, name: str, store: Address) -> Trainer | None:
        trainer = self.by_name.get(name)
        if trainer is None or trainer.state not in (TrainerState.STARTING, TrainerState.SEATED):
            return None
        if trainer.state is TrainerState.STARTING:
            trainer.state = TrainerState.COLD if self.rehearsal_failed else TrainerState.IDLE
            trainer.rank = None if self.rehearsal_failed else trainer.rank
        trainer.store = store
        self.failed_starts = 0
        return trainer

    def remove(self, name: str) -> Trainer | None:
        return self.by_name.pop(name, None)

    def kill(self, trainer: Trainer, reason: str) -> None:
        """Kills a trainer. It counts as one of the node's trainers until its process has ended."""
        trainer.killed = True
        self._out.append(KillTrainer(trainer=trainer.name, reason=reason))

    def discard(self, trainer: Trainer, reason: str) -> None:
        """Nothing it says or does from here on counts."""
        self.remove(trainer.name)
        self.kill(trainer, reason)

    def replace(self, trainer: Trainer, reason: str, *, rank: int | None) -> None:
        """A fresh process takes its place, for this rank. The fork server makes one in milliseconds."""
        self._emit_rehearsal_ended(trainer, reason)
        self.discard(trainer, reason)
        self.start(rank)

    def replace_rehearsals(self, *, but: Collection[int] = ()) -> None:
        """The script begins anew, or has begun anew: rehearsals were sent recordings of an earlier start. `but`: ranks
        whose recordings are current."""
        for trainer in self.free():
            if trainer.begun and trainer.rank not in but:
                self.replace(trainer, EARLIER_START, rank=trainer.rank)

    def retire(self, keep: int) -> None:
        """All but `keep` of the free ones are needed no more."""
        for trainer in self.free()[keep:]:
            trainer.state = TrainerState.LEAVING

    def _emit_rehearsal_ended(self, trainer: Trainer, reason: str) -> None:
        detail = {"trainer": trainer.name, "reason": reason}
        self._out.append(Emit(event=Event(what="rehearsal_ended", node=self._node, rank=trainer.rank, detail=detail)))

    # --- messages to them --------------------------------------------------------------------------------------------

    def tell(self, trainer: Trainer, message: ToTrainerMessage) -> None:
        if trainer.store is not None:  # it has said hello
            self._out.append(ToTrainer(trainer=trainer.name, message=message))

    def tell_seated(self, message: ToTrainerMessage) -> None:
        for trainer in self.seated():
            self.tell(trainer, message)

    def detach(self, segment: int) -> None:
        """A trainer that has mapped a segment keeps its memory in use, whatever the agent does with it."""
        for trainer in self.by_name.values():
            if segment in trainer.attached:
                trainer.attached.remove(segment)
                self.tell(trainer, Detach(segment=segment))

    # --- which one ---------------------------------------------------------------------------------------------------

    def trainer_of(self, rank: int) -> Trainer | None:
        return next((t for t in self.seated() if t.rank == rank), None)

    def seated(self) -> Iterator[Trainer]:
        return (t for t in list(self.by_name.values()) if t.state is TrainerState.SEATED)

    def free(self) -> list[Trainer]:
        return [t for t in self.by_name.values() if t.state not in (TrainerState.SEATED, TrainerState.LEAVING)]

    def leaving(self) -> list[Trainer]:
        return [t for t in self.by_name.values() if t.state is TrainerState.LEAVING]

    def take_for(self, rank: int) -> Trainer:
        """The free trainer that would be ready soonest for this rank, or a fresh one. A process that has begun the
        script as another rank cannot be taken, because it keeps what that rank left in it; one such process leaves to
        make room for the fresh one."""
        fit = [t for t in self.free() if t.rank == rank or not t.begun]
        if fit:
            return min(fit, key=lambda t: _distance(t, rank))
        for trainer in self.free()[:1]:
            reason = f"it has begun the script as rank {trainer.rank}, and rank {rank} is needed"
            self._emit_rehearsal_ended(trainer, reason)
            trainer.state = TrainerState.LEAVING
        return self.start()

    # --- what they are doing -----------------------------------------------------------------------------------------

    def lives(self) -> tuple[Live, ...]:
        return tuple(t.live for t in self.seated() if t.live is not None)

    def at_rest(self) -> bool:
        return not any(t.halting for t in self.by_name.values())

    def infos(self) -> tuple[TrainerInfo, ...]:
        return tuple(t.info() for t in self.by_name.values())


def _distance(trainer: Trainer, rank: int) -> int:
    """How far a trainer that can take this rank is from being ready for it: the lowest number is the nearest."""
    match trainer.state, trainer.rank == rank:
        case TrainerState.PARKED, _:
            return 0
        case TrainerState.REHEARSING, True:
            return 1
        case TrainerState.STARTING, True:
            return 3
        case TrainerState.STARTING, False:
            return 4
        case _:
            return 2
