"""The coordinator's decisions: membership, generations, commits, recoveries. No I/O; `step` is the only door.

It holds no bulk data and nothing that could not be rebuilt from what agents report. A recovery is a walk through
phases, and a fault in any of them is simply the next generation:

    FORMING -> PREPARING -> CONNECTING -> RUNNING -> FENCING -> (WAITING ->) PREPARING -> ...
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from deadpool.events import Event
from deadpool.protocol.copies import Ledger
from deadpool.protocol.effects import (
    CoordinatorEffect,
    CoordinatorInput,
    Drop,
    Emit,
    Finish,
    FromAgent,
    LinkLost,
    Stalled,
    StopAsked,
    Tick,
    ToAgent,
)
from deadpool.protocol.identity import NO_GENERATION, Generation, Version
from deadpool.protocol.members import Member, cast, castings, natural
from deadpool.protocol.messages import (
    Connect,
    Connected,
    Copy,
    Ended,
    Fence,
    FenceAck,
    Finished,
    Go,
    Heartbeat,
    Inventory,
    Join,
    Missed,
    Permit,
    PlanAck,
    Prepared,
    Prompts,
    Refused,
    Rehearse,
    Release,
    Report,
    Sealed,
    Settings,
    Shutdown,
    Stored,
    TrainerLost,
    Trainers,
    Welcome,
)
from deadpool.protocol.placement import NOWHERE
from deadpool.protocol.planner import Blueprint, NodeView, NoPlan, View, choose_seats, plan
from deadpool.protocol.prompts import PromptShelf
from deadpool.protocol.topology import Schedule


class Phase(Enum):
    FORMING = "forming"
    FENCING = "fencing"
    WAITING = "waiting"
    PREPARING = "preparing"
    CONNECTING = "connecting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each wait may last, in seconds. All are derived from one timeout in config.py."""

    node_s: float  # silence after which a node is lost
    fence_s: float  # for every survivor to come to rest
    prepare_s: float  # for newcomers to build and load
    connect_s: float  # for all groups to be made
    spare_wait_s: float  # for a spare to join when none is left
    stall_s: float  # without one completed step anywhere, after which people are told


TRIAL_COMMITS = 10
"""Versions that have to be complete before a claim of replication counts as having been true."""

FUTILE_LIMIT = 5
"""Recoveries in a row without one new completed version, after which going on would be a loop."""


class Coordinator:
    def __init__(self, *, settings: Settings, deadlines: Deadlines, schedule: Schedule, term: int = 1) -> None:
        self.settings, self.deadlines, self.schedule = settings, deadlines, schedule
        self.layout = settings.layout
        self.term = term
        self.generation = NO_GENERATION
        self.phase = Phase.FORMING
        self.members: dict[str, Member] = {}
        self.seats: tuple[str, ...] = ()
        self.placement = NOWHERE
        self.ledger = Ledger(self.layout, (), NOWHERE)
        self.permit = self._no_permit()
        self.blueprint: Blueprint | None = None
        self.cause = ""
        self.prompts = PromptShelf()
        self.reached: dict[str, dict[int, Any]] = {}  # per milestone of a recovery: rank -> what it said
        self.protected = False
        self.committed = False  # some version was complete once: the job has something to lose
        self.released = False  # every rank has completed its last step: a loss from here on costs no state
        self.phase_deadline: float | None = None
        self.futile = 0
        self._progress: tuple[int, float] | None = None  # completed steps of all ranks together, and since when
        self._script_error: str | None = None  # the last one since a version was completed
        self._commits = 0
        self._unmatched: tuple[int, ...] = ()  # ranks whose replicas were not, as last said
        self._fault_count = 0
        self._effects: list[CoordinatorEffect] = []

    # --- the contract of a core --------------------------------------------------------------------------------------

    def step(self, input: CoordinatorInput, *, now: float) -> list[CoordinatorEffect]:
        self._effects = []
        if self.phase is not Phase.ENDED:
            self._dispatch(input, now)
        effects, self._effects = self._effects, []
        return effects

    def deadline(self) -> float | None:
        """When to send a Tick at the latest."""
        silent = [member.heard + self.deadlines.node_s for member in self.members.values()]
        wakes = silent + ([self.phase_deadline] if self.phase_deadline is not None else [])
        return min(wakes) if wakes and self.phase is not Phase.ENDED else None

    def check(self) -> None:
        """Invariants, for tests and the simulator."""
        watermark = self.permit.watermark
        assert watermark is None or watermark.number < self.permit.keep_from, self.permit
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
            case Heartbeat(steps=steps):
                member.steps.update(dict(steps))
                self._watch_progress(now)
            case Trainers(trainers=trainers):
                member.trainers = trainers
                self._assign_rehearsals()
            case Prompts():
                for node in self.prompts.bring(member.node, message):
                    self._send(node, message)
            case TrainerLost(rank=rank, reason=reason, trainer=trainer):
                self._lose_trainer(member, trainer, rank, reason, now)
            case Sealed(copy=copy):
                self._sealed(copy)
            case Missed(rank=rank, number=number, reason=reason):
                self._missed(rank, number, reason)
            case Stored(rank=rank, version=version):
                self._stored(rank, member.node, version)
            case FenceAck(inventory=inventory):
                self._fence_acked(member, inventory, now)
            case PlanAck():
                member.plan_acked = True
                self._maybe_go()
            case Prepared(rank=rank):
                self._reach("prepared", rank, message, now)
            case Connected(rank=rank):
                self._reach("connected", rank, True, now)
            case Finished(rank=rank):
                self._reach("finished", rank, True, now)
            case Ended(rank=rank, code=code):
                self._reach("ended", rank, code, now)
            case Report():
                pass  # the driver writes records to the log; nothing is decided by them
            case _:
                self._emit("refused", node=member.node, message=type(message).__name__)

    # --- membership --------------------------------------------------------------------------------------------------

    def _join(self, node: str, join: Join, now: float) -> None:
        if node in self.members:
            self._send(node, Refused(reason=f"a node named {node} is in the job already"))
            self._effects.append(Drop(node=node))
            return
        member = Member(node, join.incarnation, join.data, join.spare, heard=now, rack=join.rack)
        self.members[node] = member
        self._emit("joined", node=node, spare=join.spare or self.phase is not Phase.FORMING)
        self._send(node, Welcome(term=self.term, settings=self.settings))
        if self.phase is Phase.FORMING:
            self._maybe_form(now)
        elif self.phase in (Phase.FENCING, Phase.WAITING):
            self._send(node, Fence(generation=self.generation, cause=self.cause))

    def _maybe_form(self, now: float) -> None:
        """The first generation: no fence is needed where nobody holds anything yet."""
        ready = sorted((m for m in self.members.values() if not m.spare), key=lambda m: natural(m.node))
        if len(ready) < self.layout.positions:
            return
        for position, member in enumerate(ready[: self.layout.positions]):
            member.position = position
        for member in self.members.values():
            member.inventory = Inventory()
        self.generation = Generation(self.term, 1)
        self.cause = "start"
        self._plan(now)

    def _lose_node(self, node: str, reason: str, now: float) -> None:
        member = self.members.pop(node, None)
        if member is None:
            return
        self._effects.append(Drop(node=node))
        self.prompts.forget(node)
        if member.position is None:
            self._emit("spare_lost", node=node, reason=reason)
            self._continue_without(now)
        else:
            self._fault(now, node=node, reason=reason, ranks=list(self.layout.ranks_at(member.position)))

    def _continue_without(self, now: float) -> None:
        """A spare that is gone may have been the last one a fence waited for."""
        if self.phase in (Phase.FENCING, Phase.WAITING):
            self._maybe_plan(now)

    def _lose_trainer(self, member: Member, trainer: str, rank: int | None, reason: str, now: float) -> None:
        if rank is None:
            self._emit("trainer_lost", node=member.node, trainer=trainer, reason=reason)
        elif reason.startswith("script:") and (verdict := self._bug(reason)):
            self._end(f"rank {rank} failed {verdict}: {reason}", failed=True)
        elif self.phase not in (Phase.FENCING, Phase.WAITING):
            self._fault(now, node=member.node, rank=rank, reason=reason, ranks=[rank])

    def _bug(self, error: str) -> str | None:
        """A script that never got anywhere, or fails the same way once more, has a bug, not an accident."""
        repeated, self._script_error = error == self._script_error, error
        if self.permit.watermark is None:
            return "before its first snapshot"
        return "again in the same way" if repeated else None

    # --- fault, fence, plan ------------------------------------------------------------------------------------------

    def _fault(self, now: float, *, node: str, reason: str, ranks: list[int], rank: int | None = None) -> None:
        if self.released:
            self._emit("lost_after_release", node=node, rank=rank, reason=reason, ranks=ranks)
            for lost in ranks:
                self._reach("ended", lost, self.reached.get("ended", {}).get(lost, 1), now)
            return
        self._fault_count += 1
        self.cause = f"fault-{self._fault_count}"
        self._emit("fault", node=node, rank=rank, reason=reason, ranks=ranks, during=self.phase.value)
        # Nodes lost while their neighbours' loss is being dealt with are the same disaster, not one more attempt.
        self.futile += rank is not None or self.phase is Phase.RUNNING
        if self.futile > FUTILE_LIMIT:
            self._end(
                f"{FUTILE_LIMIT} recoveries without a new completed version; last fault: {reason}",
                failed=True,
            )
            return
        self._fence(now)

    def _fence(self, now: float) -> None:
        self.generation = self.generation.next()
        self.reached = {}
        self._enter(Phase.FENCING, now, self.deadlines.fence_s)
        for member in self.members.values():
            member.inventory, member.plan_acked = None, False
            self._send(member.node, Fence(generation=self.generation, cause=self.cause))
        self._emit("fence")
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
                self._rehearse(member, cast(member, list(self.layout.ranks_at(position))))

    def _fence_acked(self, member: Member, inventory: Inventory, now: float) -> None:
        if member.inventory is None:
            member.inventory = inventory
        if self.phase in (Phase.FENCING, Phase.WAITING):
            self._maybe_plan(now)

    def _maybe_plan(self, now: float) -> None:
        if all(member.inventory is not None for member in self.members.values()):
            if self.phase is Phase.FENCING:
                self._emit("fenced")
            self._plan(now)

    def _view(self) -> View:
        return View(
            layout=self.layout,
            generation=self.generation,
            cause=self.cause,
            watermark=self.permit.watermark,
            schedule=self.schedule,
            committed=self.committed,
            placement=self.placement,
            nodes=tuple(
                NodeView(
                    node=m.node,
                    data=m.data,
                    position=m.position,
                    trainers=m.trainers,
                    inventory=m.inventory or Inventory(),
                    rack=m.rack,
                )
                for m in self.members.values()
            ),
        )

    def _plan(self, now: float) -> None:
        match plan(self._view()):
            case NoPlan(missing_nodes=missing, reason=reason) if missing:
                self._wait_for_spare(reason, now)
            case NoPlan(reason=reason, ranks=ranks):
                self._emit("no_plan", reason=reason, ranks=list(ranks))
                self._end(f"{reason}; restart from the durable checkpoint", failed=True)
            case Blueprint() as blueprint:
                self._carry_out(blueprint, now)

    def _wait_for_spare(self, reason: str, now: float) -> None:
        if self.phase is not Phase.WAITING:
            self._emit("waiting", reason=reason, deadline_s=self.deadlines.spare_wait_s)
            self._enter(Phase.WAITING, now, self.deadlines.spare_wait_s)

    def _carry_out(self, blueprint: Blueprint, now: float) -> None:
        self.blueprint, self.seats, self.permit = blueprint, blueprint.seats, blueprint.permit
        for position, node in enumerate(self.seats):
            self.members[node].position = position
        self._open_ledger(blueprint)
        self.protected = False
        resume = blueprint.resume
        self._emit(
            "planned",
            step=resume.number if resume else 0,
            resume=str(resume) if resume else None,
            seats=list(self.seats),
            lost_steps=self._steps_lost(resume),
        )
        self._adopt_placement(blueprint)
        if resume is None:
            self.prompts.void()
        for node, part in blueprint.parts.items():
            self._prompt(node, [order.rank for order in part.orders])
            self._send(node, part)
        self._enter(Phase.PREPARING, now, self.deadlines.prepare_s)

    def _adopt_placement(self, blueprint: Blueprint) -> None:
        """What racks cannot protect is said when it becomes so, not at every plan."""
        before, self.placement = self.placement.same_rack, blueprint.placement
        positions = self.placement.same_rack
        if positions and positions != before:
            self._emit("same_rack", positions=list(positions), nodes=[self.seats[p] for p in positions])

    def _open_ledger(self, blueprint: Blueprint) -> None:
        self.ledger = Ledger(self.layout, self.seats, blueprint.placement)
        resume = blueprint.resume
        if resume is None:
            return
        for member in self.members.values():
            inventory = member.inventory or Inventory()
            for copy in inventory.own:
                rank = copy.seal.rank
                if member.position == self.layout.position_of(rank) and self._counts(copy.seal.version, resume):
                    self.ledger.add_sealed(copy)
            for copy in inventory.held:
                if self._counts(copy.seal.version, resume):
                    self.ledger.add_stored(copy.seal.rank, member.node, copy.seal.version)

    def _counts(self, version: Version, resume: Version) -> bool:
        return version == resume or version == self.permit.watermark

    def _steps_lost(self, resume: Version | None) -> int:
        """Completed steps that will be computed again, counted at the rank that was furthest ahead."""
        inventories = (m.inventory for m in self.members.values() if m.inventory is not None)
        live = [live.version.number for i in inventories for live in i.live if live.version is not None]
        return max(0, max(live, default=0) - (resume.number if resume else 0))

    # --- prepare, connect, go ----------------------------------------------------------------------------------------

    def _reach(self, milestone: str, rank: int, what: Any, now: float) -> None:
        reached = self.reached.setdefault(milestone, {})
        reached[rank] = what
        if len(reached) < self.layout.world_size:
            return
        match milestone:
            case "prepared" if self.phase is Phase.PREPARING:
                self._connect(now)
            case "connected":
                self._maybe_go()
            case "finished":
                self.released = True
                self._emit("finished")
                self._tell_seats(Release(generation=self.generation))
            case "ended":
                codes = {r: code for r, code in reached.items() if code}
                reason = f"ranks ended with codes {codes}" if codes else "all ranks ended"
                self._end(reason, failed=bool(codes))

    def _connect(self, now: float) -> None:
        assert self.blueprint is not None
        prepared: dict[int, Prepared] = self.reached["prepared"]
        agreed = len({each.agreement for each in prepared.values()}) == 1
        self._emit("prepared")
        if not agreed:
            self._emit("renegotiate")
        store = prepared[self.blueprint.store_rank].store
        self._tell_seats(Connect(generation=self.generation, store=store, agreed=agreed))
        self._enter(Phase.CONNECTING, now, self.deadlines.connect_s)

    def _maybe_go(self) -> None:
        """Rule 15: every seat connected, and every node has dropped what is newer than the resume version."""
        connected = len(self.reached.get("connected", {})) == self.layout.world_size
        if self.phase is not Phase.CONNECTING or not connected:
            return
        if not all(member.plan_acked for member in self.members.values() if member.node in self.seats):
            return
        self.phase, self.phase_deadline = Phase.RUNNING, None
        for member in self.members.values():
            member.steps = {}
        self._emit("go")
        self._tell_seats(Go(generation=self.generation, cause=self.cause))
        self._assign_rehearsals()
        self._settle_resume()

    def _settle_resume(self) -> None:
        """The resume version may have all its copies, or be one that nobody captures: no news would ever say so."""
        if self.blueprint is not None and self.blueprint.resume is not None:
            self._advance(self.blueprint.resume)
        self._set_permit(self.permit.watermark, self.permit.keep_from)

    # --- copies ------------------------------------------------------------------------------------------------------

    def _sealed(self, copy: Copy) -> None:
        self.ledger.add_sealed(copy)
        self._advance(copy.seal.version)

    def _stored(self, rank: int, node: str, version: Version) -> None:
        self.ledger.add_stored(rank, node, version)
        self._advance(version)

    def _missed(self, rank: int, number: int, reason: str) -> None:
        self.ledger.missed.add(number)
        self._emit("missed", rank=rank, step=number, reason=reason)
        self._set_permit(self.permit.watermark, self.permit.keep_from)

    def _advance(self, version: Version) -> None:
        """Rule 6: commit. Never a version that the permit has passed: some rank may have overwritten it."""
        if version.number >= self.permit.keep_from and self.ledger.complete(version):
            if alone := self.ledger.unmatched(version):
                self._replicas_differ(version, alone)
            else:
                self._commit(version)
        self._note_protection()

    def _commit(self, version: Version) -> None:
        self.futile, self.committed, self._script_error = 0, True, None
        self._commits += 1
        self._set_permit(version, version.number + 1)

    def _replicas_differ(self, version: Version, ranks: tuple[int, ...]) -> None:
        """What was not sent is nowhere else, so the version does not count. From the beginning that is a wrong claim,
        and better heard of now than at a loss; later it is a state that has come apart, and older versions stay."""
        if ranks != self._unmatched:
            self._unmatched = ranks
            self._emit("replicas_differ", step=version.number, ranks=list(ranks))
        if self._commits < TRIAL_COMMITS:
            names = ", ".join(map(str, ranks))
            self._end(
                f"ranks {names}: state that counts as replicated is on no other node at version {version.number}; "
                "correct protect(replicated=...), or give None there for what is to be sent",
                failed=True,
            )
        else:
            self.ledger.missed.add(version.number)
            self._set_permit(self.permit.watermark, self.permit.keep_from)

    def _set_permit(self, watermark: Version | None, keep_from: int) -> None:
        """Rule 7: the permit passes versions that nobody will capture, never one that is still on its way."""
        while self._is_dead(keep_from):
            keep_from += 1
        permit = Permit(generation=self.generation, watermark=watermark, keep_from=keep_from, schedule=self.schedule)
        if permit == self.permit:
            return
        self.permit = permit
        self.ledger.obey(permit)
        self._tell_seats(permit)

    def _is_dead(self, number: int) -> bool:
        resume = self.blueprint.resume if self.blueprint else None
        captured = self.schedule.captures(number) or (resume is not None and resume.number == number)
        return number in self.ledger.missed or not captured

    def _note_protection(self) -> None:
        watermark = self.permit.watermark
        if self.protected or watermark is None or self.phase is not Phase.RUNNING:
            return
        if self.ledger.complete(watermark):
            self.protected = self.committed = True
            self._emit("protected", step=watermark.number)

    # --- spares ------------------------------------------------------------------------------------------------------

    def _assign_rehearsals(self) -> None:
        if self.phase is Phase.RUNNING:
            for member, casting in castings(list(self.members.values()), self.layout):
                self._rehearse(member, casting)

    def _rehearse(self, member: Member, casting: list[tuple[str, int]]) -> None:
        self._prompt(member.node, [rank for _, rank in casting])
        for trainer, rank in casting:
            self._send(member.node, Rehearse(generation=self.generation, trainer=trainer, rank=rank))

    def _prompt(self, node: str, ranks: list[int]) -> None:
        """Before the order that needs them, on the same link."""
        for rank in ranks:
            prompts = self.prompts.lend(node, rank)
            if prompts is not None:
                self._send(node, prompts)

    # --- deadlines and the end ---------------------------------------------------------------------------------------

    def _excuse(self, seconds: float) -> None:
        """Rule 20: nobody is blamed for a silence that was ours."""
        for member in self.members.values():
            member.heard += seconds
        if self.phase_deadline is not None:
            self.phase_deadline += seconds

    def _look_at_deadlines(self, now: float) -> None:
        silent = [m.node for m in self.members.values() if now >= m.heard + self.deadlines.node_s]
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
            case Phase.WAITING:
                self._end("no spare node joined in time; start one with: deadpool agent --join", failed=True)
            case _:
                self.phase_deadline = None

    def _watch_progress(self, now: float) -> None:
        """A job that hangs is not healed yet, but it must not hang unseen: who is behind is said, once per stall."""
        steps = {rank: step for member in self.members.values() for rank, step in member.steps.items()}
        done = sum(steps.values())
        if self._progress is None or done != self._progress[0]:
            self._progress = (done, now)
        elif done and self.phase is Phase.RUNNING and now - self._progress[1] >= self.deadlines.stall_s:
            behind = sorted(rank for rank, step in steps.items() if step == min(steps.values()))
            self._emit("stalled", ranks=behind, seconds=round(now - self._progress[1]))
            self._progress = (done, now)

    def _late_nodes(self, milestone: str) -> list[str]:
        reached = self.reached.get(milestone, {})
        positions = {self.layout.position_of(r) for r in range(self.layout.world_size) if r not in reached}
        late = [self.seats[position] for position in sorted(positions)]
        return late or [node for node in self.seats if not self.members[node].plan_acked]

    def _lose_each(self, nodes: list[str], what: str, now: float) -> None:
        """Who did not do its part in time is treated as lost; one fault for each, the last one plans."""
        for node in nodes:
            if self.phase is not Phase.ENDED:  # a loss can be the one that ends the job
                self._lose_node(node, f"node {node} {what}", now)

    def _enter(self, phase: Phase, now: float, patience_s: float) -> None:
        self.phase, self.phase_deadline = phase, now + patience_s

    def _end(self, reason: str, *, failed: bool) -> None:
        self._emit("failed" if failed else "completed", reason=reason)
        self._broadcast(Shutdown(reason=reason, failed=failed))
        self.phase, self.phase_deadline = Phase.ENDED, None
        self._effects.append(Finish(failed=failed, reason=reason))

    # --- small words -------------------------------------------------------------------------------------------------

    def _no_permit(self) -> Permit:
        return Permit(generation=NO_GENERATION, watermark=None, keep_from=0, schedule=self.schedule)

    def _send(self, node: str, message: Any) -> None:
        self._effects.append(ToAgent(node=node, message=message))

    def _tell_seats(self, message: Any) -> None:
        """Only those who have a part in the plan: a node that joined since would not know what it is about."""
        for node in self.seats:
            self._send(node, message)

    def _broadcast(self, message: Any) -> None:
        for node in self.members:
            self._send(node, message)

    def _emit(
        self,
        what: str,
        *,
        node: str | None = None,
        rank: int | None = None,
        step: int | None = None,
        **detail: Any,
    ) -> None:
        event = Event(
            what=what,
            cause=self.cause or None,
            generation=str(self.generation),
            node=node,
            rank=rank,
            step=step,
            detail=detail,
        )
        self._effects.append(Emit(event=event))
