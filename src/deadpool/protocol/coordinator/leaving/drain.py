"""A drain: how the ranks of a node that leaves on purpose come to a spare with nothing computed twice.

    REHEARSING  the spare that will take them rehearses exactly these ranks; training goes on
    STOPPING    every rank is asked to stop at the same version and to capture it
    MOVING      all ranks stand there and have sealed it at home: a fence, and a plan that resumes from it
    PARTING     the ranks run elsewhere; the node stays until every copy of the watermark lies where it should

Rule 21, drain: all ranks stop at one version. Which version that can be is not known here, so ranks are asked twice.
First each stops at the next boundary that it comes to. No rank completes the step after the first boundary that is
reported (rule 22, every step needs every rank). So a little beyond that boundary there is a version that no rank has
passed and every rank comes to. A rank that has passed it all the same says so, and another version is chosen.

A *reconfiguration* takes the same way without a node that leaves: from STOPPING to a fence and a plan that places
copies anew, while all ranks stay where they are.

A fault at any time ends all this in a fence. The plan after it moves the ranks if there are spares enough, and leaves
them where they are if not. No rule of safety depends on what is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.messages import OrderMessage, Proceed, Stand

AT_ONCE = 0
"""A version that every rank is past."""
AHEAD_STEPS = 2
"""How far beyond the first boundary that a rank is known to stand at. One step is enough where the host waits for its
device; a host that runs ahead of its device has decided about one version more."""
ATTEMPTS = 3
"""How many versions are tried, where some rank has no room for a capture."""
_CAN_REHEARSE = ("starting", "idle", "rehearsing", "parked")


class DrainStage(Enum):
    REHEARSING = "rehearsing"
    STOPPING = "stopping"
    MOVING = "moving"
    PARTING = "parting"


class DrainAction(Enum):
    """What the coordinator has to do next."""

    HAND_OVER = "hand over"
    DISMISS = "dismiss"


@dataclass(slots=True)
class Drain:
    node: str | None  # None: no node leaves, only copies are placed anew
    position: int | None
    reason: str
    deadline: float | None
    stage: DrainStage = DrainStage.REHEARSING
    successor: str | None = None
    number: int | None = None  # the version at which every rank stops, once it is known
    attempts: int = 1
    standing: set[int] = field(default_factory=set)  # ranks
    sealed: set[int] = field(default_factory=set)  # ranks
    stays: bool = False  # `node` keeps the ranks of its own position, and gives those of further ones to spares

    def facts(self) -> dict[str, object]:
        """Describes the drain for status."""
        return {"node": self.node, "stage": self.stage.value, "successor": self.successor, "version": self.number}


class Drains:
    """Drains nodes, no more than one at a time."""

    def __init__(self, job: JobState, rehearsals: Rehearsals) -> None:
        self._job, self._rehearsals = job, rehearsals
        self._patience_s = job.deadlines.prepare_s
        self.current: Drain | None = None

    def begin(self, member: Member, reason: str, now: float) -> None:
        assert member.position is not None and self.current is None
        member.leaving = True
        self.current = drain = Drain(member.node, member.position, reason, deadline=now + self._patience_s)
        self._name_successor(drain)
        ranks = list(self._job.layout.ranks_at(member.position))
        self._job.out.emit("drain", node=member.node, ranks=ranks, successor=drain.successor, reason=reason)

    def begin_moves(self, drain: Drain) -> None:
        """To all spares that a plan would seat now, from a node that stays."""
        assert self.current is None and drain.stays
        self.current = drain
        for successor, taken in self._job.newcomers():
            successor.reserved_position = taken
            self._rehearsals.rehearse_position(successor, taken)
            if taken == drain.position:
                drain.successor = successor.node

    def begin_reconfiguration(self, reason: str, now: float) -> None:
        assert self.current is None
        self.current = Drain(None, None, reason, deadline=now + self._patience_s)

    @property
    def deadline(self) -> float | None:
        return self.current.deadline if self.current is not None else None

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: the coordinator itself did not run for so long."""
        if self.current is not None and self.current.deadline is not None:
            self.current.deadline += seconds

    # --- what ranks report --------------------------------------------------------------------------------------------

    def on_standing(self, rank: int, number: int) -> None:
        drain = self.current
        if drain is None or drain.stage is not DrainStage.STOPPING:
            return
        if drain.number is None or number > drain.number:
            self._choose_version(drain, number)
        elif number == drain.number:
            drain.standing.add(rank)

    def on_sealed(self, rank: int, number: int) -> None:
        if self.current is not None and self.current.number == number:
            self.current.sealed.add(rank)

    def on_missed(self, rank: int, number: int) -> None:
        drain = self.current
        if drain is None or drain.stage is not DrainStage.STOPPING:
            return
        if number != drain.number or rank in drain.sealed:
            return
        drain.attempts += 1
        if drain.attempts > ATTEMPTS:
            self.give_up(f"rank {rank} could not capture the version to hand over")
        else:
            self._choose_version(drain, number)

    def _choose_version(self, drain: Drain, passed: int) -> None:
        """Chooses the version at which ranks stand. It is none that the permit has passed already: captures of it would
        be thrown away.
        """
        commits = self._job.commits
        drain.number = max(passed + AHEAD_STEPS, commits.permit.keep_from)
        drain.standing.clear()
        drain.sealed.clear()
        commits.expect(drain.number)
        self._send_all(Stand(generation=self._job.generation, number=drain.number))

    # --- from stage to stage ------------------------------------------------------------------------------------------

    def advance(self, now: float) -> DrainAction | None:
        """Called after every input while the job runs."""
        drain = self.current
        if drain is None:
            return None
        if drain.node is not None and drain.node not in self._job.members:
            self.forget()  # it was lost before it could leave
            return None
        if drain.stage in (DrainStage.REHEARSING, DrainStage.STOPPING) and not self._has_successor(drain):
            self.give_up("there is no spare left to take its ranks")
            return None
        match drain.stage:
            case DrainStage.REHEARSING:
                self._stop_ranks_if_ready(drain, now)
            case DrainStage.STOPPING if drain.deadline is not None and now >= drain.deadline:
                self.give_up(f"ranks did not come to a stand within {self._patience_s:g} s")
            case DrainStage.STOPPING if len(drain.standing) == len(drain.sealed) == self._job.layout.world_size:
                return DrainAction.HAND_OVER
            case DrainStage.PARTING if self._job.commits.protected:
                return DrainAction.DISMISS
        return None

    def _stop_ranks_if_ready(self, drain: Drain, now: float) -> None:
        late = drain.deadline is not None and now >= drain.deadline
        in_loop = self._all_in_loop()
        if late and not in_loop:
            self.give_up(f"not every rank was in its training loop within {self._patience_s:g} s")
        elif in_loop and (late or self._is_ready(drain)):
            drain.stage, drain.deadline = DrainStage.STOPPING, now + self._patience_s
            self._send_all(Stand(generation=self._job.generation, number=AT_ONCE))

    def _all_in_loop(self) -> bool:
        seated = (member for member in self._job.members.values() if member.position is not None)
        in_loop = sum(len(member.steps) for member in seated)  # a node that has come back may have run before
        return in_loop == self._job.layout.world_size

    def _is_ready(self, drain: Drain) -> bool:
        if drain.stays:
            return all(self._has_rehearsed(successor, position) for successor, position in self._job.newcomers())
        if drain.successor is None or drain.position is None:
            return True  # no rank moves
        return self._has_rehearsed(self._job.members[drain.successor], drain.position)

    def _has_rehearsed(self, successor: Member, position: int) -> bool:
        """Tells whether the successor's ranks are rehearsed, or no trainer there can rehearse anything. A trainer that
        is parked for another rank may not have heard yet which rank it is to rehearse now."""
        parked = {trainer.rank for trainer in successor.trainers if trainer.state == "parked"}
        can_rehearse = any(trainer.state in _CAN_REHEARSE for trainer in successor.trainers)
        hopeless = bool(successor.trainers) and not can_rehearse
        return parked.issuperset(self._job.layout.ranks_at(position)) or hopeless

    def _has_successor(self, drain: Drain) -> bool:
        if drain.node is None:
            return True
        if drain.successor not in self._job.members:
            self._name_successor(drain)
        return drain.successor is not None

    def _name_successor(self, drain: Drain) -> None:
        assert drain.position is not None
        drain.successor = self._job.successor_at(drain.position)
        if drain.successor is not None:
            successor = self._job.members[drain.successor]
            successor.reserved_position = drain.position
            self._rehearsals.rehearse_position(successor, drain.position)

    # --- fence, plan, the end -----------------------------------------------------------------------------------------

    def on_fence(self) -> None:
        """Takes note of a fence, for the drain or for a fault: no rank stands any more, and the plan decides where the
        ranks go.
        """
        if self.current is not None:
            self.current.stage, self.current.deadline = DrainStage.MOVING, None
            self._keep_needed_seat(self.current)

    def _keep_needed_seat(self, drain: Drain) -> None:
        """Keeps, after further losses, a seat without which a plan would have no majority."""
        member = self._job.members.get(drain.node) if drain.node is not None else None
        if member is not None and member.position is not None and not self._job.has_majority_without(member):
            self.give_up("too few of the nodes that ran would be left")

    def on_plan(self) -> None:
        """What was to change by this plan has changed, or waits for another occasion. A node that was lost before it
        could leave may come back before Go: then it is a spare like any other."""
        drain = self.current
        if drain is None:
            return
        if drain.node is None or drain.stays or drain.node not in self._job.members:
            self.forget()
        elif drain.node in self._job.seats:
            self.give_up("after a fault there was no spare left to take its ranks")
        else:
            drain.stage = DrainStage.PARTING

    def give_up(self, reason: str) -> None:
        """The node stays. Ranks that stand go on."""
        drain = self.current
        if drain is None:
            return
        if drain.stage is DrainStage.STOPPING:
            self._job.commits.expect(None)
            self._send_all(Proceed(generation=self._job.generation))
        if drain.node is None:
            self._job.out.emit("reconfiguration_failed", reason=reason)
        else:
            self._job.out.emit("growth_failed" if drain.stays else "drain_failed", node=drain.node, reason=reason)
        self.forget()

    def forget(self) -> None:
        """The node has left, or was lost, or stays."""
        members = self._job.members
        if self.current is not None:
            for member in members.values():
                member.reserved_position = None
            if self.current.node is not None and self.current.node in members:
                members[self.current.node].leaving = False
        self.current = None

    def _send_all(self, message: OrderMessage) -> None:
        self._job.out.send_each(tuple(dict.fromkeys(self._job.commits.ledger.nodes)), message)
