"""The coordinator's decisions: membership, generations, recoveries. No I/O; `step` is the only door.

It holds no bulk data and nothing that could not be rebuilt from what agents report. A recovery is a walk through
phases, and a fault in any of them is simply the next generation:

    FORMING -> PREPARING -> CONNECTING -> RUNNING -> FENCING -> (WAITING ->) PREPARING -> ...
                                                             -> SALVAGING -> ENDED

What it knows is in `job.py`. What it does, in the order in which a recovery happens; each part knows only the ones
after it (`assembly.py`):

    overdue      who was silent, who did not do its part in time
    leaving      who goes on purpose            departures: how       stragglers: who is too slow
    membership   who comes, who is lost         absences: who may come back       spares: who is left
    faults       what every fault is followed by       setbacks: does the job get anywhere       hangs: nobody moves
    quarantine   who gets no more ranks         conduct: what speaks against a node
    fencing      the end of a generation        rehearsals: spares build for their ranks meanwhile
    planning     is everybody frozen, is there a majority       planner: the plan       waiting: for what is missing
    resumption   prepare, connect, go           milestones: how far the ranks have come
    ending       completed, failed, abandoned   salvage: what is left goes to disk

While the job runs, `commits.py` says which versions are complete, `interval.py` which ones are captured, `hang.py`
whether anybody moves. How one becomes coordinator is `leadership.py`'s business, what it finds then `takeover.py`'s.
"""

from __future__ import annotations

from typing import Any

from deadpool.protocol.coordinator.assembly import Books, assemble
from deadpool.protocol.coordinator.deadlines import Deadlines
from deadpool.protocol.coordinator.fault_history import Tolerance
from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.recovered_view import RecoveredView
from deadpool.protocol.effects import (
    CoordinatorEffect,
    CoordinatorInput,
    DrainAsked,
    FromAgent,
    LinkLost,
    Stalled,
    StopAsked,
    Tick,
    earliest,
)
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import (
    Connected,
    Durable,
    Ended,
    FenceAck,
    Finished,
    Heartbeat,
    Join,
    Leave,
    Missed,
    Parting,
    PlanAck,
    Prepared,
    Recording,
    Report,
    Salvaged,
    Sealed,
    Settings,
    Spoilt,
    Standing,
    Stored,
    TakeoverReport,
    TrainerLost,
    Trainers,
)
from deadpool.protocol.topology import Layout, Schedule


class Coordinator:
    def __init__(
        self,
        *,
        settings: Settings,
        deadlines: Deadlines,
        schedule: Schedule,
        tolerance: Tolerance | None = None,
        term: int = 1,
        name: str = "",
        alone: bool = True,
    ) -> None:
        """`name` tells two apart who ask for the same term; one that is not `alone` plans only with a majority."""
        job = Job(settings=settings, deadlines=deadlines, schedule=schedule, term=term, name=name, alone=alone)
        books = Books(job, tolerance or Tolerance())
        self._job, self._out, self.commits = job, job.out, job.commits
        self.conduct, self.stragglers, self.departures = books.conduct, books.stragglers, books.departures
        self.salvaging, self._recordings, self._rehearsals = books.salvaging, books.recordings, books.rehearsals
        self._pace, self._hangs, self._waiting = books.pace, books.hangs, books.waiting
        self._absences = books.absences
        parts = assemble(job, books)
        self._overdue, self._leaving, self._membership = parts.overdue, parts.leaving, parts.membership
        self._faults, self._fencing, self._resumption = parts.faults, parts.fencing, parts.resumption
        self._ending, self._takeover = parts.ending, parts.takeover

    # --- the contract of a core --------------------------------------------------------------------------------------

    def step(self, input: CoordinatorInput, *, now: float) -> list[CoordinatorEffect]:
        if self.phase is not Phase.ENDED:
            self._dispatch(input, now)
            self._leaving.look(now)
        elif isinstance(input, FromAgent) and isinstance(input.message, Join):
            self._out.send(input.node, self._ending.last_word)  # it would wait for a welcome, and we for it to leave
        return self._out.take()

    def take_over(self, recovered_view: RecoveredView, *, now: float) -> list[CoordinatorEffect]:
        """Rule 18. The only other door: the first that a successor hears of the job. What was said in between is heard
        after it."""
        self._takeover.enter_upon(recovered_view, now)
        for said in recovered_view.unheard() if recovered_view.is_running else ():
            if self.phase is not Phase.ENDED:
                self._dispatch(said, now)
        return self._out.take()

    def deadline(self) -> float | None:
        """When to send a Tick at the latest."""
        if self.phase is Phase.ENDED:
            return None
        return earliest(self._overdue.earliest_silence(), earliest(self._job.phase_deadline, self.departures.deadline))

    def check(self) -> None:
        """Invariants, for tests and the simulator."""
        self.commits.check()
        seated = [m.position for m in self.members.values() if m.position is not None]
        assert len(seated) == len(set(seated)), seated

    # --- for whoever asks --------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        return self._job.settings

    @property
    def layout(self) -> Layout:
        return self._job.layout

    @property
    def term(self) -> int:
        return self._job.term

    @property
    def generation(self) -> Generation:
        return self._job.generation

    @property
    def cause(self) -> str:
        return self._job.cause

    @property
    def phase(self) -> Phase:
        return self._job.phase

    @property
    def members(self) -> dict[str, Member]:
        return self._job.members

    @property
    def seats(self) -> tuple[str, ...]:
        return self._job.seats

    @property
    def has_majority(self) -> bool:
        return self._job.has_majority

    @property
    def is_forsaken(self) -> bool:
        return self._waiting.is_forsaken

    def refusal_to_drain(self, node: str) -> str | None:
        """Why this node cannot be drained now; None: it can."""
        return self._leaving.refusal(node)

    # --- who hears what ----------------------------------------------------------------------------------------------

    def _dispatch(self, input: CoordinatorInput, now: float) -> None:
        match input:
            case FromAgent(node=node, message=Join() as join):
                self._membership.join(node, join, now)
            case FromAgent(node=node, message=message):
                self._hear(node, message, now)
            case LinkLost(node=node, reason=reason):
                self._membership.lose_node(node, f"link to node {node} lost: {reason}", now)
            case StopAsked(reason=reason):
                self._ending.end(reason, failed=True)
            case DrainAsked(node=node, reason=reason):
                self._leaving.let_leave(node, reason, now)
            case Stalled(seconds=seconds):
                self._excuse(seconds)
            case Tick():
                self._overdue.look(now)

    def _excuse(self, seconds: float) -> None:
        """Rule 20: we did not run for so long."""
        for keeps_time in (self._overdue, self._hangs, self.conduct, self.departures):
            keeps_time.excuse(seconds)

    def _hear(self, node: str, message: Any, now: float) -> None:
        member = self.members.get(node)
        if member is None:
            return  # fenced out already: nothing it says counts
        member.heard = now
        generation = getattr(message, "generation", None)
        if generation is not None and generation != self.generation:
            return  # older news of a generation that is over; no handler has to think of it
        self._handle(member, message, now)

    def _handle(self, member: Member, message: Any, now: float) -> None:
        match message:
            case Heartbeat():
                self._heartbeat(member, message, now)
            case Trainers(trainers=trainers):
                member.trainers = trainers
                if self.phase is Phase.RUNNING:
                    self._rehearsals.assign(list(self.members.values()))
            case Recording() if member.position == self.layout.position_of(message.rank):
                for node in self._recordings.bring(member.node, message):
                    self._out.send(node, message)
            # copies, while the job runs
            case Sealed(copy=copy):
                self.departures.sealed(copy.seal.rank, copy.seal.version.number)
                self._ending.end_if(self.commits.sealed(copy))
            case Missed(rank=rank, number=number, reason=reason):
                self.departures.missed(rank, number, self.members)
                self.commits.missed(rank, number, reason)
                self._pace.interval.missed(message)
            case Stored(rank=rank, version=version):
                self._ending.end_if(self.commits.stored(rank, member.node, version))
            case Spoilt():
                self._spoil(member, message)
            case Durable():
                self.salvaging.note_durable(message)
            # a recovery, in its order
            case TrainerLost():
                self._membership.lose_trainer(member, message, now)
            case FenceAck():
                self._fencing.acked(member, message, now)
            case PlanAck():
                self._resumption.plan_acked(member, now)
            case Prepared(rank=rank):
                self._resumption.reach("prepared", rank, message, now)
            case Connected(rank=rank):
                self._resumption.reach("connected", rank, True, now)
            # ways out
            case Standing(rank=rank, number=number):
                self.departures.stands(rank, number)
            case Parting():
                self._absences.fell_silent(member.node)
            case Leave(reason=reason):
                self.departures.wishes[member.node] = reason
            case Finished(rank=rank):
                self._resumption.reach("finished", rank, True, now)
            case Ended(rank=rank, code=code):
                self._resumption.reach("ended", rank, code, now)
            case Salvaged() if self.phase is Phase.SALVAGING:
                self._ending.salvaged(member.node, message)
            case Report() | TakeoverReport() | Recording():
                pass  # for the log; what we have seen for ourselves; and of a rank that others hold by now
            case _:
                self._out.emit("refused", node=member.node, message=type(message).__name__)

    def _heartbeat(self, member: Member, beat: Heartbeat, now: float) -> None:
        member.steps.update(beat.steps)
        member.steps_told = now
        self._hangs.hear(member, beat, now)
        if beat.costs:
            self._pace.interval.hear(beat.costs)
        if self.phase is Phase.RUNNING:
            self._pace.look(self.members.values(), now)
            if beat.efforts:
                self.stragglers.hear(beat.efforts)
            self._leaving.look_for_stragglers(now)
        if (hang := self._hangs.look(now)) is not None:
            self._faults.arise(now, reason=hang.reason, ranks=[])

    def _spoil(self, member: Member, spoilt: Spoilt) -> None:
        """The copy is lost: its node drops it before it is asked again what it has."""
        self._out.emit("spoilt", node=spoilt.node, rank=spoilt.rank, step=spoilt.version.number, found_by=member.node)
        self.commits.lost_copy(spoilt.rank, spoilt.node, spoilt.version)
        if spoilt.node in self.members and spoilt.node != member.node:
            self._out.send(spoilt.node, spoilt)
        home = self.seats[self.layout.position_of(spoilt.rank)] if self.seats else None
        if home is not None and home in self.members and home != spoilt.node:
            self._out.send(home, spoilt)  # a holder that lacks it has to be sent it again
