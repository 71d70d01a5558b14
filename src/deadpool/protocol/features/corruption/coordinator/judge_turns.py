"""Whose turn it is to be computed by a spare, and which nodes can do that now. Rule 36, a spare is the judge.

The positions take turns, one in every so many audits. A position comes first that a person has asked for, or whose
ranks were found to differ. A spare rehearses the position before its audit, so that no rank waits for a process to
start; if none is ready by then, the audit does without a judge, and the turn stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.seams import CoordinatorCore
from deadpool.protocol.quorum import Voter


class JudgeTurns:
    def __init__(self, core: CoordinatorCore) -> None:
        self._job, self._rehearsals = core.job, core.rehearsals
        self._every = core.job.settings.audit_spares_every
        self._audits = 0  # since the last one with a judge
        self._next = 0  # position, in turn
        self._first: int | None = None  # position that comes before all others
        self._is_asked_for = False  # by a person, who waits for it
        self._reserved: str | None = None  # the node that rehearses for it
        self._knowing: frozenset[Voter] | None = None  # nodes that were told of the audit that is under way
        self.ended = ""  # why nobody is judged in turn any more
        self.confirmed: dict[str, int] = {}  # by node: the newest step in which another node has computed the same

    def put_first(self, position: int | None) -> None:
        """A person has asked for it, or for nobody."""
        self._is_asked_for = position is not None
        if position is not None:
            self._first = position

    def suspect(self, position: int) -> None:
        """The ranks of this position were found to differ."""
        if self.is_on and self._first is None:
            self._first = position

    @property
    def is_on(self) -> bool:
        """Whether anybody is judged who was not asked for."""
        return bool(self._every) and not self.ended

    @property
    def due(self) -> int | None:
        """The position whose turn it is in the next audit."""
        if self._first is not None:
            return self._first
        return self._next if self.is_on and self._audits + 1 >= self._every else None

    def begin(self) -> None:
        """An audit is ordered. A node that joins later does not know of it, and tells nothing."""
        self._knowing = frozenset(member.voter for member in self._job.members.values())

    def end(self) -> None:
        self._knowing = None

    def on_audit(self, judged: int | None) -> None:
        """An audit is over, in which this position was judged."""
        self.release()
        if judged is None:
            self._audits += 1
            return
        if self._first == judged:
            self._first, self._is_asked_for = None, False
        if self._next == judged:
            self._next = (judged + 1) % self._job.layout.positions
        self._audits = 0

    # --- nodes --------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """A spare rehearses the position that is due. What reserves it otherwise goes first."""
        position = self.due
        if position is None or self._ready(position) or not self._healthy:
            return
        if all(each.reserved_position is None for each in self._job.members.values()):
            member = self._healthy[-1]  # the first ones rehearse what a loss needs most
            member.reserved_position, self._reserved = position, member.node
            self._rehearsals.assign_all()

    def release(self) -> None:
        """Spares rehearse what they choose again."""
        member = self._job.members.get(self._reserved or "")
        if member is not None:
            member.reserved_position = None
        self._reserved = None

    @property
    def is_awaited(self) -> bool:
        """A spare is there for the position that a person has asked for, and is not ready yet."""
        if self._first is None or not self._is_asked_for:
            return False
        return bool(self._healthy) and not self._ready(self._first)

    def judge_of(self, position: int) -> str | None:
        """A spare that stands ready to take the position."""
        ready = self._ready(position)
        return ready[0] if ready and self.allows({position: ready[0]}) else None

    def judge_of_suspect(self, position: int) -> str | None:
        """A spare for it, ready or not."""
        spares = self.spares(position) if self.is_on else ()
        return spares[0] if spares and self.allows({position: spares[0]}) else None

    def _ready(self, position: int) -> list[str]:
        ranks = set(self._job.layout.ranks_at(position))
        return [
            each.node
            for each in self._healthy
            if ranks <= {trainer.rank for trainer in each.trainers if trainer.state == "parked"}
        ]

    @property
    def _healthy(self) -> list[Member]:
        spares = [each for each in self._job.members.values() if each.is_spare]
        known = [each for each in spares if self._knowing is None or each.voter in self._knowing]
        return [each for each in known if not (each.quarantined or each.doubted or each.cut_off)]

    def spares(self, position: int) -> tuple[str, ...]:
        """Nodes that may take the position, those that have rehearsed it first."""
        ready = self._ready(position)
        return (*ready, *(each.node for each in self._healthy if each.node not in ready))

    def allows(self, moves: Mapping[int, str]) -> bool:
        """Whether a plan with these moves has a majority (rule 18, one coordinator per term)."""
        job = self._job
        sitting = [job.members.get(seat) for position, seat in enumerate(job.seats) if position in moves]
        leaving = [member for member in sitting if member is not None and member.node not in moves.values()]
        return job.has_majority_without(*leaving)
