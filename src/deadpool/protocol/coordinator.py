"""The coordinator's decisions: membership, generations, recoveries. No I/O; `step` is the only door.

It holds no bulk data and nothing that could not be rebuilt from what agents report. A recovery is a walk through
phases, and a fault in any of them is simply the next generation:

    FORMING -> PREPARING -> CONNECTING -> RUNNING -> FENCING -> (WAITING ->) PREPARING -> ...
                                                             -> SALVAGING -> ENDED

Which versions are complete is kept by `commits.py`, which ones are captured by `interval.py`, whether the job gets
anywhere by `progress.py` and `setbacks.py`, who is slow by `stragglers.py`, who leaves on purpose by `departures.py`,
who rehearses what by `rehearsals.py`, which nodes fail too often by `conduct.py`, who may come back by `absences.py`.
How one becomes coordinator is `office.py`'s business.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

from deadpool.protocol.absences import Absences, dismissal
from deadpool.protocol.commits import Commits
from deadpool.protocol.conduct import Conduct, Tolerance
from deadpool.protocol.deadlines import Deadlines
from deadpool.protocol.departures import Departures, Next
from deadpool.protocol.effects import (
    CoordinatorEffect,
    CoordinatorInput,
    DrainAsked,
    FromAgent,
    LinkLost,
    Stalled,
    StopAsked,
    Tick,
)
from deadpool.protocol.estate import Estate
from deadpool.protocol.footing import Quorum, Voter
from deadpool.protocol.identity import FOUNDING, Generation
from deadpool.protocol.interval import Pace
from deadpool.protocol.members import Member, natural, steps_lost
from deadpool.protocol.messages import (
    Connect,
    Connected,
    Durable,
    Ended,
    Fence,
    FenceAck,
    Finished,
    Go,
    Heartbeat,
    Inventory,
    Join,
    Leave,
    Missed,
    PlanAck,
    Prepared,
    Prompts,
    Refused,
    Release,
    Report,
    Salvaged,
    Sealed,
    Settings,
    Shutdown,
    Spoilt,
    Standing,
    Stored,
    Testimony,
    TrainerLost,
    Trainers,
    Welcome,
)
from deadpool.protocol.milestones import Milestones
from deadpool.protocol.outbox import Outbox
from deadpool.protocol.planner import Blueprint, NoPlan, View, choose_seats, plan, what_is_left
from deadpool.protocol.progress import HangWatch
from deadpool.protocol.prompts import PromptShelf
from deadpool.protocol.reach import earliest
from deadpool.protocol.rehearsals import Rehearsals
from deadpool.protocol.salvage import Salvaging
from deadpool.protocol.setbacks import Setback, Setbacks
from deadpool.protocol.silence import SilenceWatch
from deadpool.protocol.spares import SpareWatch
from deadpool.protocol.stragglers import StragglerWatch
from deadpool.protocol.topology import Schedule


class Phase(Enum):
    FORMING = "forming"
    FENCING = "fencing"
    WAITING = "waiting"
    PREPARING = "preparing"
    CONNECTING = "connecting"
    RUNNING = "running"
    SALVAGING = "salvaging"  # it cannot go on: what is left is written to disk
    RESIGNED = "resigned"  # without a majority: somebody else may be in office
    ENDED = "ended"


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
        self.settings, self.deadlines = settings, deadlines
        self.layout = settings.layout
        self.term, self.name = term, name
        self._quorum = Quorum(alone=alone)
        self._out = Outbox(term)
        self.commits = Commits(self.layout, schedule, self._out)
        self.phase = Phase.FORMING
        self.members: dict[str, Member] = {}
        self.seats: tuple[str, ...] = ()
        self.blueprint: Blueprint | None = None
        self.prompts = PromptShelf()
        self._rehearsals = Rehearsals(self.layout, self.prompts, self._out)
        self._milestones = Milestones(self.layout.world_size)
        self.released = False  # every rank has completed its last step: a loss from here on costs no state
        self.phase_deadline: float | None = None
        self._silence = SilenceWatch(deadlines.node_s)
        self._hang_watch = HangWatch(deadlines.hang_s, self.layout.world_size)
        self._paused_nodes: set[str] = set()  # some rank of theirs says that it pauses
        self._hang_cause: str | None = None  # the fault that was a hang, while it is looked for who is at fault
        self._suspected = False  # nobody was found yet
        self._setbacks = Setbacks(self.commits)
        self._given_up: str | None = None  # why the job is not to be planned again
        self.conduct = Conduct(tolerance or Tolerance())
        self.absences = Absences()
        self.salvaging = Salvaging(self._out)
        self._waiting_for = ""  # in WAITING
        self._has_prolonged = False  # for somebody who came at the last moment
        self._awaited = ""  # a node that had not acknowledged the fence when somebody last looked
        self.pace = Pace(self.commits, settings, self._out)
        self.stragglers = StragglerWatch(self.layout, self._out)
        self.spares = SpareWatch(self._out)
        self.departures = Departures(
            self.layout,
            self.commits,
            self._out,
            patience_s=deadlines.prepare_s,
            choose_heir=self._choose_heir,
            groom=lambda node, position: self._rehearsals.hint(self.members[node], position),
        )
        self._fault_count = 0
        self._last_word = Shutdown(reason="", failed=False)

    @property
    def generation(self) -> Generation:
        return self._out.generation

    @property
    def cause(self) -> str:
        return self._out.cause

    # --- the contract of a core --------------------------------------------------------------------------------------

    def step(self, input: CoordinatorInput, *, now: float) -> list[CoordinatorEffect]:
        if self.phase is not Phase.ENDED:
            self._dispatch(input, now)
            self._look_after_departures(now)
        elif isinstance(input, FromAgent) and isinstance(input.message, Join):
            self._out.send(input.node, self._last_word)  # it would wait for a welcome, and we for it to leave
        return self._out.take()

    def deadline(self) -> float | None:
        """When to send a Tick at the latest."""
        if self.phase is Phase.ENDED:
            return None
        return earliest(self._silence.earliest(self.members), earliest(self.phase_deadline, self.departures.deadline))

    def check(self) -> None:
        """Invariants, for tests and the simulator."""
        self.commits.check()
        seated = [m.position for m in self.members.values() if m.position is not None]
        assert len(seated) == len(set(seated)), seated

    def _dispatch(self, input: CoordinatorInput, now: float) -> None:
        match input:
            case FromAgent(node=node, message=Join() as join):
                self._join(node, join, now)
            case FromAgent(node=node, message=message):
                self._hear(node, message, now)
            case LinkLost(node=node, reason=reason):
                self._lose_node(node, f"link to node {node} lost: {reason}", now)
            case StopAsked(reason=reason):
                self._end(reason, failed=True)
            case DrainAsked(node=node, reason=reason):
                self._let_leave(node, reason, now)
            case Stalled(seconds=seconds):
                self._excuse(seconds)
            case Tick():
                self._look_at_deadlines(now)

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
            case Heartbeat(steps=steps, paused=paused, costs=costs, efforts=efforts):
                member.steps.update(steps)
                member.steps_told = now
                if paused or member.paused:
                    self._note_pauses(member, dict(paused))
                self._hang_watch.hear(steps, now)
                self.pace.interval.hear(costs)
                if self.phase is Phase.RUNNING:
                    self.pace.look(self.members.values(), now)
                    self.stragglers.hear(efforts)
                    self._look_for_stragglers(now)
                self._look_for_hang(now)
            case Trainers(trainers=trainers):
                member.trainers = trainers
                if self.phase is Phase.RUNNING:
                    self._rehearsals.assign(list(self.members.values()))
            case Prompts() if member.position == self.layout.position_of(message.rank):
                for node in self.prompts.bring(member.node, message):
                    self._out.send(node, message)
            case TrainerLost(rank=rank, reason=reason, trainer=trainer):
                self._lose_trainer(member, trainer, rank, reason, now)
            case Sealed(copy=copy):
                self.departures.sealed(copy.seal.rank, copy.seal.version.number)
                self._end_if(self.commits.sealed(copy))
            case Missed(rank=rank, number=number, reason=reason):
                self.departures.missed(rank, number, self.members)
                self.commits.missed(rank, number, reason)
                self.pace.interval.missed(message)
            case Stored(rank=rank, version=version):
                self._end_if(self.commits.stored(rank, member.node, version))
            case FenceAck():
                self._fence_acked(member, message, now)
            case PlanAck():
                member.plan_acked = True
                self._maybe_go(now)
            case Prepared(rank=rank):
                self._reach("prepared", rank, message, now)
            case Connected(rank=rank):
                self._reach("connected", rank, True, now)
            case Finished(rank=rank):
                self._reach("finished", rank, True, now)
            case Ended(rank=rank, code=code):
                self._reach("ended", rank, code, now)
            case Durable():
                self.salvaging.note_durable(message)
            case Spoilt():
                self._spoil(member, message)
            case Salvaged() if self.phase is Phase.SALVAGING:
                self.salvaging.hear(member.node, message)
                self._maybe_close()
            case Standing(rank=rank, number=number):
                self.departures.stands(rank, number)
            case Leave(reason=reason):
                self.departures.wishes[member.node] = reason
            case Report() | Testimony() | Prompts():
                pass  # for the log; what we have seen for ourselves; and of a rank that others hold by now
            case _:
                self._out.emit("refused", node=member.node, message=type(message).__name__)

    # --- membership --------------------------------------------------------------------------------------------------

    def _join(self, node: str, join: Join, now: float) -> None:
        if node in self.members:
            self._out.send(node, Refused(reason=f"a node named {node} is in the job already"))
            self._out.drop(node)
            return
        member = Member(node, join.incarnation, join.data, join.spare, heard=now, rack=join.rack)
        member.quarantined = join.footing.quarantined or self.conduct.is_quarantined(node)
        self.members[node] = member
        self.absences.came_back(node)
        self._out.emit("joined", node=node, spare=join.spare or self.phase is not Phase.FORMING)
        self._out.send(node, Welcome(term=self.term, settings=self.settings, by=self.name))
        if self.phase is not Phase.FORMING:  # before, who will have a seat is not seated yet
            self.spares.look(self.members.values())
        if self.phase is Phase.FORMING:
            self._maybe_form(now)
        elif self.phase in (Phase.FENCING, Phase.WAITING) or (
            self.phase is not Phase.SALVAGING and not join.footing.is_new
        ):
            self._out.send(node, Fence(generation=self.generation, cause=self.cause))

    def _take_back(self, member: Member) -> None:
        """It was taken for lost while others went on, and is at rest now. It keeps what is still of use."""
        inventory = member.inventory or Inventory()
        copies = [f"{copy.seal.rank}:{copy.seal.version}" for copy in (*inventory.own, *inventory.held)]
        self._out.emit("returned", node=member.node, copies=copies)
        part = dismissal(self.generation, self.cause, self.commits, quarantined=member.quarantined)
        self._out.send(member.node, part)

    def _maybe_form(self, now: float) -> None:
        """The first generation: no fence is needed where nobody holds anything yet."""
        if len(self.members) < self.layout.positions:
            return
        ready = sorted((m for m in self.members.values() if not m.spare), key=lambda m: natural(m.node))
        if len(ready) < self.layout.positions:
            return
        for position, member in enumerate(ready[: self.layout.positions]):
            member.position = position
        for member in self.members.values():
            member.inventory = Inventory()
        self._out.generation, self._out.cause = Generation(self.term, FOUNDING), "start"
        self._quorum.pass_to(self.generation, [member.voter for member in ready[: self.layout.positions]])
        self._plan(now)

    def _lose_node(self, node: str, reason: str, now: float) -> None:
        member = self.members.pop(node, None)
        if member is None:
            return
        self._out.drop(node)
        self.prompts.forget(node)
        self.commits.forget(node)
        self.salvaging.forget(node)
        self.departures.wishes.pop(node, None)
        if self.phase is Phase.SALVAGING:
            self._maybe_close()
        elif member.position is None:
            self._out.emit("spare_lost", node=node, reason=reason)
            self.spares.look(self.members.values())
            self._continue_without(now)
        else:
            ranks = list(self.layout.ranks_at(member.position))
            self._fault(now, node=node, reason=reason, ranks=ranks, blamed=node)

    def _continue_without(self, now: float) -> None:
        """A spare that is gone may have been the last one a fence waited for."""
        if self.phase in (Phase.FENCING, Phase.WAITING):
            self._maybe_plan(now)

    def _lose_trainer(self, member: Member, trainer: str, rank: int | None, reason: str, now: float) -> None:
        if rank is None:
            self._out.emit("trainer_lost", node=member.node, trainer=trainer, reason=reason)
        elif self.phase in (Phase.FENCING, Phase.WAITING, Phase.SALVAGING):
            return
        elif reason.startswith(("script:", "device:")) and (verdict := self._setbacks.bug(reason, member.node)):
            if not (verdict.follows_node and reason.startswith("device:") and self._has_healthy_spare):
                self._end(f"rank {rank} failed {verdict.words}: {reason}", failed=True)
                return
            self.conduct.quarantine(member.node, f"the same error again on this node: {reason}")
            self._fault(now, node=member.node, rank=rank, reason=reason, ranks=[rank], blamed=member.node)
        else:
            blamed = member.node if trainer else None  # else no process has ended: something was not to be had
            self._fault(now, node=member.node, rank=rank, reason=reason, ranks=[rank], blamed=blamed)

    # --- leaving on purpose ------------------------------------------------------------------------------------------

    def refusal_to_drain(self, node: str) -> str | None:
        """Why this node cannot be drained now; None: it can."""
        return self.departures.refusal(node, self.members, self.phase.value, running=self._can_drain)

    @property
    def _can_drain(self) -> bool:
        return self.phase is Phase.RUNNING and not self.released

    def _let_leave(self, node: str, reason: str, now: float) -> str | None:
        """Returns why not."""
        member, refusal = self.members.get(node), self.refusal_to_drain(node)
        if refusal is not None or member is None:
            self._out.emit("drain_refused", node=node, reason=refusal)
        elif member.position is None:
            self._dismiss(member, reason, now)
        else:
            self.departures.begin(member, self.members, reason, now)
        return refusal

    def _grant_wish(self, now: float) -> None:
        """A node that was told to end has some time, but not for ever: where nobody can take its ranks, it goes at once
        and is lost."""
        wish = self.departures.next_wish(self.members, running=self._can_drain)
        if wish is not None and (refusal := self._let_leave(*wish, now)) is not None:
            self._out.send(wish[0], Shutdown(reason=f"{wish[1]}; not drained: {refusal}", failed=True))

    def _choose_heir(self, position: int) -> str | None:
        """Who would take this position, were it given up now."""
        seats = choose_seats(self._view())
        heir = seats[position] if not isinstance(seats, NoPlan) else None
        return heir if heir is not None and self.members[heir].position is None else None

    def _look_after_departures(self, now: float) -> None:
        self._grant_wish(now)
        drain = self.departures.drain
        if drain is None or self.phase is not Phase.RUNNING:
            return
        if self.released:
            self.departures.give_up("the job comes to its end", self.members)
            return
        match self.departures.look(self.members, now):
            case Next.HAND_OVER:
                self._fault_count += 1
                self._out.cause = f"drain-{self._fault_count}"
                ranks = list(self.layout.ranks_at(drain.position))
                self._out.emit("handover", node=drain.node, step=drain.number, reason=drain.reason, ranks=ranks)
                self._fence(now)
            case Next.DISMISS:
                member = self.members[drain.node]
                self.departures.forget(self.members)
                self._dismiss(member, drain.reason, now)

    def _dismiss(self, member: Member, reason: str, now: float) -> None:
        """It has nothing that anybody needs."""
        del self.members[member.node]
        self.prompts.forget(member.node)
        self._out.emit("left", node=member.node, reason=reason)
        self._out.send(member.node, Shutdown(reason=f"node {member.node} leaves: {reason}", failed=False))
        self.spares.look(self.members.values())
        self._continue_without(now)

    def _look_for_stragglers(self, now: float) -> None:
        straggler = self.stragglers.look(self.seats)
        if straggler is None or not self.settings.replace_stragglers:
            return
        position = self.seats.index(straggler.node)
        if position not in self.stragglers.replaced and self.refusal_to_drain(straggler.node) is None:
            self.stragglers.replaced.add(position)
            self._let_leave(straggler.node, straggler.text, now)

    # --- fault, fence, plan ------------------------------------------------------------------------------------------

    def _fault(
        self,
        now: float,
        *,
        reason: str,
        ranks: list[int],
        node: str | None = None,
        rank: int | None = None,
        blamed: str | None = None,
    ) -> None:
        """`ranks` are lost. None, if the job hangs: whoever is at fault for it will not come to rest."""
        if self.released:
            self._out.emit("lost_after_release", node=node, rank=rank, reason=reason, ranks=ranks)
            for lost in ranks:
                self._reach("ended", lost, self._milestones.said("ended").get(lost, 1), now)
            return
        self._fault_count += 1
        self._out.cause = f"fault-{self._fault_count}"
        self._out.emit("fault", node=node, rank=rank, reason=reason, ranks=ranks, during=self.phase.value)
        # Nodes lost while their neighbours' loss is being dealt with are the same disaster, not one more attempt.
        setback = Setback(cause=self.cause, reason=reason, node=node, ranks=tuple(ranks))
        if self._setbacks.is_futile(setback, one_more=rank is not None or self.phase is Phase.RUNNING):
            self._give_up()
        self._suspected, self._hang_cause = not ranks, self.cause if not ranks else None
        if blamed is not None:
            self._blame(blamed, reason, now)
        self._fence(now)

    def _give_up(self) -> None:
        """Going on would be a loop. Everybody is stopped once more, for what they have to be kept."""
        if self._given_up is None:
            self._given_up = self._setbacks.report()
            self._out.emit("no_progress", step=self._setbacks.step, reason=self._given_up, **self._setbacks.facts())

    # --- nodes that fail again and again -----------------------------------------------------------------------------

    @property
    def _has_healthy_spare(self) -> bool:
        return any(member.position is None and not member.quarantined for member in self.members.values())

    def _has_majority_without(self, member: Member) -> bool:
        seated = [each for each in self.members.values() if each.position is not None and each is not member]
        return self._quorum.has([each.voter for each in seated])

    def _blame(self, node: str, reason: str, now: float) -> None:
        """At the fence: whoever is quarantined has no seat in the plan that follows, unless nobody else is left."""
        self.conduct.blame(node, reason, now)
        member, charge = self.members.get(node), self.conduct.why(node) or self.conduct.charge(node)
        if charge is None or (member is None and self.conduct.is_quarantined(node)):
            return
        if member is not None and not (self._has_healthy_spare and self._has_majority_without(member)):
            self._out.emit("not_quarantined", node=node, reason=charge)
            return
        self.conduct.quarantine(node, charge)
        self._out.emit("quarantined", node=node, reason=charge)
        if member is not None:
            member.quarantined, member.position = True, None
            self.prompts.forget(node)

    def _fence(self, now: float) -> None:
        self._out.generation = self.generation.next(self.term)
        self.commits.fence()
        self.pace.fence()
        self.stragglers.fence()
        self.departures.fence()
        self._milestones.clear()
        self._enter(Phase.FENCING, now, self.deadlines.fence_s)
        for member in self.members.values():
            member.inventory, member.plan_acked = None, False
        self._out.send_each(self.members, Fence(generation=self.generation, cause=self.cause))
        self._out.emit("fence")
        self._hint_newcomers()
        self._maybe_plan(now)

    def _hint_newcomers(self) -> None:
        """Seats do not depend on inventories: spares build for their rank while survivors are still unwinding."""
        seats = choose_seats(self._view())
        if isinstance(seats, NoPlan):
            return
        for position, node in enumerate(seats):
            member = self.members[node]
            if member.position is None:
                self._rehearsals.hint(member, position)

    def _fence_acked(self, member: Member, ack: FenceAck, now: float) -> None:
        if member.inventory is None:
            member.inventory = ack.inventory
            for rank, found in ack.hung if member.position is not None else ():
                self._suspected = False
                self._out.emit("hung", node=member.node, rank=rank, found=found)
                if self._hang_cause == self.cause:
                    self._setbacks.found(member.node, rank, found)
                    self._blame(member.node, f"rank {rank} hung: {found}", now)
                    self._hint_newcomers()
        if self.phase in (Phase.FENCING, Phase.WAITING):
            self._maybe_plan(now)
        elif member.position is None:
            self._take_back(member)

    def _spoil(self, member: Member, spoilt: Spoilt) -> None:
        """The copy is lost: its node drops it before it is asked again what it has."""
        self._out.emit("spoilt", node=spoilt.node, rank=spoilt.rank, step=spoilt.version.number, found_by=member.node)
        self.commits.lost_copy(spoilt.rank, spoilt.node, spoilt.version)
        if spoilt.node in self.members and spoilt.node != member.node:
            self._out.send(spoilt.node, spoilt)
        home = self.seats[self.layout.position_of(spoilt.rank)] if self.seats else None
        if home is not None and home in self.members and home != spoilt.node:
            self._out.send(home, spoilt)  # a holder that lacks it has to be sent it again

    def _maybe_plan(self, now: float) -> None:
        if self._is_frozen():
            if self.phase is Phase.FENCING:
                self._out.emit("fenced")
                self._acquit()
            if self.has_majority and self._given_up is not None:
                self._abandon(self._given_up, now)
            elif self.has_majority:
                self._plan(now)
            else:
                self._wait_for_majority(now)

    def _is_frozen(self) -> bool:
        """Everybody has acknowledged. Whoever is still awaited is asked about first: there may be thousands."""
        awaited = self.members.get(self._awaited)
        if awaited is not None and awaited.inventory is None:
            return False
        late = next((member.node for member in self.members.values() if member.inventory is None), None)
        self._awaited = late or ""
        return late is None

    @property
    def has_majority(self) -> bool:
        """Rule 18: those who are with us are so many that nobody else can have been elected without them. Only seats
        count: whoever is elected next learns of a plan that has gone from those who sit in it."""
        return self._quorum.has([member.voter for member in self.members.values() if member.position is not None])

    @property
    def is_forsaken(self) -> bool:
        """Nobody at all is heard, and some only fell silent: it may be we who are cut off, and they who go on."""
        return not self.members and self.phase is Phase.WAITING and self._waiting_for == "return"

    def _wait_for_majority(self, now: float) -> None:
        if self._begin_waiting("majority", now, self.deadlines.node_s):
            self._out.emit("no_majority", reason="most of the nodes that ran do not answer", nodes=sorted(self.members))

    def _begin_waiting(self, what: str, now: float, patience_s: float) -> bool:
        """False: it has been waited for that before."""
        if self.phase is Phase.WAITING and self._waiting_for == what:
            return False
        self._waiting_for, self._has_prolonged = what, False
        self._enter(Phase.WAITING, now, patience_s)
        return True

    def _wait_for_the_late(self, nodes: list[str], now: float) -> None:
        """Time is up, but somebody has come and is still coming to rest: it may be what was waited for."""
        if self._has_prolonged:
            self._lose_each(nodes, "did not unwind in time", now)
        else:
            self._has_prolonged = True
            self._enter(Phase.WAITING, now, self.deadlines.fence_s)

    def _acquit(self) -> None:
        if self._suspected:
            self._suspected = False
            self._out.emit("nobody_hung", reason="every rank came to rest: a collective was stuck")

    def _view(self) -> View:
        return View(
            layout=self.layout,
            generation=self.generation,
            cause=self.cause,
            watermark=self.commits.permit.watermark,
            schedule=self.commits.schedule,
            committed=self.commits.committed,
            placement=self.commits.placement,
            nodes=tuple(member.view() for member in self.members.values()),
        )

    def _plan(self, now: float) -> None:
        match plan(self._view()):
            case NoPlan(missing_nodes=missing, reason=reason) if missing:
                self._wait_for_spare(reason, now)
            case NoPlan(reason=reason) if self.absences.hoped_for:
                self._wait_for_return(reason, now)
            case NoPlan(reason=reason, ranks=ranks):
                self._out.emit("no_plan", reason=reason, ranks=list(ranks))
                self._abandon(reason, now)
            case Blueprint() as blueprint:
                self._carry_out(blueprint, now)

    def _wait_for_spare(self, reason: str, now: float) -> None:
        if self._begin_waiting("spare", now, self.deadlines.spare_wait_s):
            self._out.emit("waiting", reason=reason, deadline_s=self.deadlines.spare_wait_s)

    def _wait_for_return(self, reason: str, now: float) -> None:
        """Who only fell silent may be alive, and have what nobody else has."""
        patience_s = self.deadlines.return_s
        if self._begin_waiting("return", now, patience_s):
            hoped_for = ", ".join(self.absences.hoped_for)
            self._out.emit("hoping", reason=f"{reason}; {hoped_for} may come back", deadline_s=patience_s)

    def _carry_out(self, blueprint: Blueprint, now: float) -> None:
        self.blueprint, self.seats = blueprint, blueprint.seats
        for member in self.members.values():
            member.position = None  # a node that leaves has given up its own
        for position, node in enumerate(self.seats):
            self.members[node].position = position
        self.departures.planned(self.seats, self.members)
        resume = blueprint.resume
        self._out.emit(
            "planned",
            step=resume.number if resume else 0,
            resume=str(resume) if resume else None,
            seats=list(self.seats),
            lost_steps=steps_lost(self.members.values(), resume),
        )
        self.commits.adopt(blueprint, self.members.values())
        assert self._quorum.has(self._voters()), (self.seats, self._quorum.electorates)
        changes = self._quorum.changes(self._voters())
        if resume is None:
            self.prompts.void()
        for node, part in blueprint.parts.items():
            self._rehearsals.prompt(node, [order.rank for order in part.orders])
            self._out.send(node, replace(part, changes=changes))
        self._enter(Phase.PREPARING, now, self.deadlines.prepare_s)

    def _voters(self) -> list[Voter]:
        return [self.members[node].voter for node in self.seats]

    # --- prepare, connect, go ----------------------------------------------------------------------------------------

    def _reach(self, milestone: str, rank: int, what: Any, now: float) -> None:
        if not self._milestones.reach(milestone, rank, what):
            return
        match milestone:
            case "prepared" if self.phase is Phase.PREPARING:
                self._connect(now)
            case "connected":
                self._maybe_go(now)
            case "finished":
                self.released = True
                self._out.emit("finished")
                self._tell_seats(Release(generation=self.generation))
            case "ended":
                codes = {r: code for r, code in self._milestones.said("ended").items() if code}
                reason = f"ranks ended with codes {codes}" if codes else "all ranks ended"
                self._end(reason, failed=bool(codes))

    def _connect(self, now: float) -> None:
        assert self.blueprint is not None
        prepared: dict[int, Prepared] = self._milestones.said("prepared")
        agreed = len({each.agreement for each in prepared.values()}) == 1
        self._out.emit("prepared")
        if not agreed:
            self._out.emit("renegotiate")
        store = prepared[self.blueprint.store_rank].store
        self._tell_seats(Connect(generation=self.generation, store=store, agreed=agreed))
        self._enter(Phase.CONNECTING, now, self.deadlines.connect_s)

    def _maybe_go(self, now: float) -> None:
        """Rule 15: every seat connected, and every node has dropped what is newer than the resume version."""
        if self.phase is not Phase.CONNECTING or not self._milestones.is_reached("connected"):
            return
        if not all(self.members[node].plan_acked for node in self.seats):
            return
        self._run(now)
        for member in self.members.values():
            member.steps, member.paused = {}, {}
        self._paused_nodes.clear()
        self._quorum.pass_to(self.generation, self._voters())
        self.absences.end()
        self._out.emit("go")
        self._tell_seats(Go(generation=self.generation, cause=self.cause))
        self._rehearsals.assign(list(self.members.values()))
        self.spares.look(self.members.values())
        self._end_if(self.commits.go())

    def _run(self, now: float) -> None:
        self.phase, self.phase_deadline = Phase.RUNNING, None
        self._hang_watch.begin(now)

    # --- taking over from a coordinator that is gone -----------------------------------------------------------------

    def take_over(self, estate: Estate, *, now: float) -> list[CoordinatorEffect]:
        """Rule 18. The only other door: the first that a successor hears of the job."""
        self.members = {member.node: member for member in estate.members(now)}
        self._out.generation, self._out.cause = estate.generation, f"term-{self.term}"
        self._fault_count = estate.newest.n  # no cause has been called by a higher number
        self._quorum.electorates = estate.electorates
        self.commits.inherit(estate)
        self.pace.fence()
        self._out.emit("took_over", term=self.term, running=estate.is_running, nodes=sorted(self.members))
        for member in self.members.values():
            if member.quarantined:
                self.conduct.quarantine(member.node, "found by the coordinator before")
        for node in estate.unseated:
            self._out.drop(node)  # it will call again, and is taken back then
        if estate.is_running:
            self._carry_on(estate, now)
        else:
            self._take_up_pieces(estate, now)
        return self._out.take()

    def _carry_on(self, estate: Estate, now: float) -> None:
        """Nobody has to stop: all are where they were left. What was said in between is heard now."""
        self.seats = tuple(node for node in estate.seats if node is not None)
        self._run(now)
        self._end_if(self.commits.take_up())
        self._rehearsals.inherit(list(self.members.values()))
        for said in estate.unheard():
            if self.phase is not Phase.ENDED:
                self._dispatch(said, now)

    def _take_up_pieces(self, estate: Estate, now: float) -> None:
        """Somebody is lost, or a recovery was under way: what is there is fenced, and planned with."""
        lost = [position for position, node in enumerate(estate.seats) if node is None]
        self.phase = Phase.PREPARING
        reason = f"nothing was heard from positions {', '.join(map(str, lost))}" if lost else "a recovery was cut short"
        for position in lost:
            self.absences.fell_silent(f"whoever sat at position {position}")
        self._fault(now, reason=reason, ranks=[rank for p in lost for rank in self.layout.ranks_at(p)])
        self._suspected, self._hang_cause = False, None

    # --- deadlines and the end ---------------------------------------------------------------------------------------

    def _excuse(self, seconds: float) -> None:
        """Rule 20: nobody is blamed for a silence that was ours."""
        for member in self.members.values():
            member.heard += seconds
        self._silence.excuse()
        self._hang_watch.excuse(seconds)
        self.conduct.excuse(seconds)
        self.departures.excuse(seconds)
        if self.phase_deadline is not None:
            self.phase_deadline += seconds

    def _look_at_deadlines(self, now: float) -> None:
        silent = self._silence.look(self.members, now)
        for node in silent:
            self.absences.fell_silent(node)
        self._lose_each(silent, f"was silent for {self.deadlines.node_s:g} s", now)
        if self.phase_deadline is None or now < self.phase_deadline or silent:
            return
        match self.phase:
            case Phase.FENCING:
                late = [m.node for m in self.members.values() if m.inventory is None]
                self._lose_each(late, "did not unwind in time", now)
            case Phase.PREPARING:
                self._lose_each(self._late_nodes("prepared"), "did not prepare in time", now)
            case Phase.CONNECTING:
                self._lose_each(self._late_nodes("connected"), "did not connect in time", now)
            case Phase.WAITING if not self.has_majority:
                self.phase, self.phase_deadline = Phase.RESIGNED, None
            case Phase.WAITING if late := [m.node for m in self.members.values() if m.inventory is None]:
                self._wait_for_the_late(late, now)
            case Phase.WAITING if self._waiting_for == "return":
                self.absences.give_up()
                self._plan(now)
            case Phase.SALVAGING:
                self._close()
            case Phase.WAITING:
                self._end("no spare node joined in time; start one with: deadpool agent --join", failed=True)
            case _:
                self.phase_deadline = None

    def _note_pauses(self, member: Member, paused: dict[int, str]) -> None:
        for rank in sorted(paused.keys() - member.paused.keys()):
            self._out.emit("paused", node=member.node, rank=rank, reason=paused[rank])
        member.paused = paused
        (self._paused_nodes.add if paused else self._paused_nodes.discard)(member.node)

    def _look_for_hang(self, now: float) -> None:
        """The abort is the diagnosis: who waits for somebody else comes to rest, who is waited for does not."""
        if self.phase is not Phase.RUNNING or self.released:
            return
        still = self._hang_watch.look(now, paused=bool(self._paused_nodes))
        if still is not None and still.is_hang:
            self._fault(now, reason=still.reason, ranks=[])
        elif still is not None:
            self._out.emit("slow_start", ranks=list(still.behind), seconds=round(still.seconds))

    def _late_nodes(self, milestone: str) -> list[str]:
        positions = {self.layout.position_of(rank) for rank in self._milestones.missing(milestone)}
        late = [self.seats[position] for position in sorted(positions)]
        return late or [node for node in self.seats if not self.members[node].plan_acked]

    def _lose_each(self, nodes: list[str], what: str, now: float) -> None:
        """Who did not do its part in time is treated as lost; one fault for each, the last one plans."""
        for node in nodes:
            if self.phase is not Phase.ENDED:  # a loss can be the one that ends the job
                self._lose_node(node, f"node {node} {what}", now)

    def _enter(self, phase: Phase, now: float, patience_s: float) -> None:
        self.phase, self.phase_deadline = phase, now + patience_s

    def _abandon(self, reason: str, now: float) -> None:
        """All are frozen, and there is nothing to go on with."""
        if self.salvaging.begin(reason, what_is_left(self._view())):
            self._enter(Phase.SALVAGING, now, self.deadlines.prepare_s)
        else:
            self._close()

    def _maybe_close(self) -> None:
        if self.salvaging.is_over:
            self._close()

    def _close(self) -> None:
        self._end(self.salvaging.last_word(), failed=True)

    def _end_if(self, untenable: str | None) -> None:
        if untenable is not None:
            self._end(untenable, failed=True)

    def _end(self, reason: str, *, failed: bool) -> None:
        self._out.emit("failed" if failed else "completed", reason=reason)
        self._last_word = Shutdown(reason=reason, failed=failed)
        self._out.send_each(self.members, self._last_word)
        self.phase, self.phase_deadline = Phase.ENDED, None
        self._out.finish(reason, failed=failed)

    def _tell_seats(self, message: Any) -> None:
        """Only those who have a part in the plan: a node that joined since would not know what it is about."""
        self._out.send_each(self.seats, message)
