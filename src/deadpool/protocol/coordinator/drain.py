"""Nodes that leave on purpose: how a node's ranks come to a spare with nothing computed twice.

    REHEARSING   the spare that will take them rehearses exactly these ranks; training goes on
    STOPPING   every rank is asked to stop at the same version and to capture it
    MOVING     all stand there and have it sealed at home: a fence, and a plan that resumes from it
    PARTING    the ranks run elsewhere; the node stays until every copy of the watermark lies where it should

Rule 21, drain. Which version that is cannot be known from here, so it is asked for in two words: first all stop at the
next boundary they come to. Nobody completes the step after the first boundary that is heard of, since each step needs
every rank (rule 22, every step needs every rank); so a little beyond it there is a version that nobody has passed and
everybody comes to. Who has passed it all the same says so, and another one is chosen.

A fault at any time ends all this in a fence. The plan after it moves the ranks if there are spares enough, and leaves
them where they are if not. Nobody's safety depends on what is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from deadpool.protocol.coordinator.commits import Commits
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.messages import Proceed, Stand
from deadpool.protocol.topology import Layout

AT_ONCE = 0
"""A version that everybody is past."""
AHEAD_STEPS = 2
"""From the first boundary that a rank is known to stand at. One is enough where the host waits for its device; a host
that runs ahead of it has decided about one version more."""
_CAN_REHEARSE = ("starting", "idle", "rehearsing", "parked")
ATTEMPTS = 3
"""Versions that are tried, where some rank has no room for a capture."""


class Stage(Enum):
    REHEARSING = "rehearsing"
    STOPPING = "stopping"
    MOVING = "moving"
    PARTING = "parting"


class Next(Enum):
    """What the coordinator has to do."""

    HAND_OVER = "hand over"
    DISMISS = "dismiss"


@dataclass(slots=True)
class Drain:
    node: str
    position: int
    reason: str
    deadline: float | None
    stage: Stage = Stage.REHEARSING
    successor: str | None = None
    number: int | None = None  # the version at which everybody stops, once it is known
    attempts: int = 1
    standing: set[int] = field(default_factory=set)  # ranks
    sealed: set[int] = field(default_factory=set)

    def facts(self) -> dict[str, Any]:
        """For people to read."""
        return {"node": self.node, "stage": self.stage.value, "successor": self.successor, "version": self.number}


class Departures:
    """One at a time. `choose_successor` says which spare would take a position that is given up now."""

    def __init__(
        self,
        layout: Layout,
        commits: Commits,
        out: Outbox,
        *,
        patience_s: float,
        choose_successor: Callable[[int], str | None],
        rehearse: Callable[[str, int], None],
    ) -> None:
        self._layout, self._commits, self._out = layout, commits, out
        self._patience_s, self._choose_successor, self._rehearse = patience_s, choose_successor, rehearse
        self.drain: Drain | None = None
        self.wishes: dict[str, str] = {}  # nodes that were told to end themselves: why

    def next_wish(self, members: Mapping[str, Member], *, running: bool) -> tuple[str, str] | None:
        """Of whom it can be decided now: who never ran at any time, the others one by one and not in a recovery."""
        for node, reason in self.wishes.items():
            member = members.get(node)
            if member is None or member.leaving or not (_goes_at_once(member, running) or (running and not self.drain)):
                continue
            del self.wishes[node]
            return node, reason
        return None

    def refusal(self, node: str, members: Mapping[str, Member], phase: str, *, running: bool) -> str | None:
        """Why this node cannot be drained now; None: it can."""
        member = members.get(node)
        if member is None:
            return f"there is no node {node!r}: known are {', '.join(sorted(members))}"
        if _goes_at_once(member, running):
            return None
        if self.drain is not None:
            return f"node {self.drain.node} is being drained: one after the other"
        if not running:
            return f"the job is {phase}: ask again when it runs"
        if not any(each.position is None and not each.leaving for each in members.values()):
            return f"there is no spare to take the ranks of node {node}: start one with: deadpool agent --spare --join"
        return None

    def begin(self, member: Member, members: Mapping[str, Member], reason: str, now: float) -> None:
        assert member.position is not None and self.drain is None
        member.leaving = True
        self.drain = Drain(member.node, member.position, reason, deadline=now + self._patience_s)
        self._name_successor(self.drain, members)
        ranks = list(self._layout.ranks_at(member.position))
        self._out.emit("drain", node=member.node, ranks=ranks, successor=self.drain.successor, reason=reason)

    @property
    def deadline(self) -> float | None:
        return self.drain.deadline if self.drain is not None else None

    def excuse(self, seconds: float) -> None:
        if self.drain is not None and self.drain.deadline is not None:
            self.drain.deadline += seconds

    # --- news --------------------------------------------------------------------------------------------------------

    def stands(self, rank: int, number: int) -> None:
        drain = self.drain
        if drain is None or drain.stage is not Stage.STOPPING:
            return
        if drain.number is None or number > drain.number:
            self._aim(drain, number)
        elif number == drain.number:
            drain.standing.add(rank)

    def sealed(self, rank: int, number: int) -> None:
        if self.drain is not None and self.drain.number == number:
            self.drain.sealed.add(rank)

    def missed(self, rank: int, number: int, members: Mapping[str, Member]) -> None:
        drain = self.drain
        if drain is None or drain.stage is not Stage.STOPPING or number != drain.number or rank in drain.sealed:
            return
        drain.attempts += 1
        if drain.attempts > ATTEMPTS:
            self.give_up(f"rank {rank} could not capture the version to hand over", members)
        else:
            self._aim(drain, number)

    def _aim(self, drain: Drain, passed: int) -> None:
        """Not below what the permit has passed already: captures of that would be thrown away."""
        drain.number = max(passed + AHEAD_STEPS, self._commits.permit.keep_from)
        drain.standing.clear()
        drain.sealed.clear()
        self._commits.expect(drain.number)
        self._tell_all(Stand(generation=self._out.generation, number=drain.number))

    # --- what follows from it ----------------------------------------------------------------------------------------

    def look(self, members: Mapping[str, Member], now: float) -> Next | None:
        """After everything that was heard while the job runs."""
        drain = self.drain
        if drain is None:
            return None
        if drain.node not in members:
            self.forget(members)  # lost before it could leave
            return None
        if drain.stage in (Stage.REHEARSING, Stage.STOPPING) and not self._has_successor(drain, members):
            self.give_up("there is no spare left to take its ranks", members)
            return None
        match drain.stage:
            case Stage.REHEARSING:
                self._look_at_readiness(drain, members, now)
            case Stage.STOPPING if drain.deadline is not None and now >= drain.deadline:
                self.give_up(f"ranks did not come to a stand within {self._patience_s:g} s", members)
            case Stage.STOPPING if len(drain.standing) == len(drain.sealed) == self._layout.world_size:
                return Next.HAND_OVER
            case Stage.PARTING if self._commits.protected:
                return Next.DISMISS
        return None

    def _has_successor(self, drain: Drain, members: Mapping[str, Member]) -> bool:
        if drain.successor not in members:
            self._name_successor(drain, members)
        return drain.successor is not None

    def _look_at_readiness(self, drain: Drain, members: Mapping[str, Member], now: float) -> None:
        assert drain.successor is not None
        late = drain.deadline is not None and now >= drain.deadline
        in_loop = self._all_in_loop(members.values())
        if late and not in_loop:
            self.give_up(f"not every rank was in its training loop within {self._patience_s:g} s", members)
        elif in_loop and (late or self._is_ready(members[drain.successor], drain.position)):
            drain.stage, drain.deadline = Stage.STOPPING, now + self._patience_s
            self._tell_all(Stand(generation=self._out.generation, number=AT_ONCE))

    def _name_successor(self, drain: Drain, members: Mapping[str, Member]) -> None:
        drain.successor = self._choose_successor(drain.position)
        if drain.successor is not None:
            members[drain.successor].heir_to = drain.position
            self._rehearse(drain.successor, drain.position)

    def _all_in_loop(self, members: Iterable[Member]) -> bool:
        return sum(len(member.steps) for member in members) == self._layout.world_size

    def _is_ready(self, successor: Member, position: int) -> bool:
        """Its ranks are rehearsed, or nobody there can rehearse anything. Who is parked for another rank may not have
        heard yet which one it is now."""
        parked = {trainer.rank for trainer in successor.trainers if trainer.state == "parked"}
        can_rehearse = any(trainer.state in _CAN_REHEARSE for trainer in successor.trainers)
        hopeless = bool(successor.trainers) and not can_rehearse
        return parked.issuperset(self._layout.ranks_at(position)) or hopeless

    # --- fence, plan, the end ----------------------------------------------------------------------------------------

    def fence(self) -> None:
        """By us, or by a fault: nobody stands any more, and the plan decides where the ranks go."""
        if self.drain is not None:
            self.drain.stage, self.drain.deadline = Stage.MOVING, None

    def planned(self, seats: tuple[str, ...], members: Mapping[str, Member]) -> None:
        drain = self.drain
        if drain is None or drain.node not in members:
            return
        if drain.node in seats:
            self.give_up("after a fault there was no spare left to take its ranks", members)
        else:
            drain.stage = Stage.PARTING

    def give_up(self, reason: str, members: Mapping[str, Member]) -> None:
        """The node stays. Who stands goes on."""
        drain = self.drain
        if drain is None:
            return
        if drain.stage is Stage.STOPPING:
            self._commits.expect(None)
            self._tell_all(Proceed(generation=self._out.generation))
        self._out.emit("drain_failed", node=drain.node, reason=reason)
        self.forget(members)

    def forget(self, members: Mapping[str, Member]) -> None:
        """It has left, or was lost, or stays."""
        if self.drain is not None:
            for member in members.values():
                member.heir_to = None
            if self.drain.node in members:
                members[self.drain.node].leaving = False
        self.drain = None

    def _tell_all(self, message: Any) -> None:
        self._out.send_each(self._commits.ledger.nodes, message)


def _goes_at_once(member: Member, running: bool) -> bool:
    """A spare simply leaves; one that had a seat not while a recovery may need its copies."""
    return member.position is None and not member.leaving and (running or not member.has_run)
