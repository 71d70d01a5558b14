"""The job as its coordinator sees it: who is with us, who sits where, in which phase, until when.

The parts of the coordinator share one `Job`. They change it, but decide nothing for each other: what follows from a
change is said by calling the part that owns it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from deadpool.protocol.coordinator.commits import Commits
from deadpool.protocol.coordinator.deadlines import Deadlines
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.coordinator.planner import Blueprint, NoPlan, View, choose_seats
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Settings
from deadpool.protocol.quorum import Changes, Quorum, Voter
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


class Job:
    def __init__(
        self, *, settings: Settings, deadlines: Deadlines, schedule: Schedule, term: int, name: str, alone: bool
    ) -> None:
        self.settings, self.deadlines, self.layout = settings, deadlines, settings.layout
        self.term, self.name = term, name
        self.out = Outbox(term)
        self.quorum = Quorum(alone=alone)
        self.commits = Commits(self.layout, schedule, self.out)
        self.phase = Phase.FORMING
        self.phase_deadline: float | None = None
        self.members: dict[str, Member] = {}
        self.seats: tuple[str, ...] = ()  # of the newest plan
        self.blueprint: Blueprint | None = None  # the newest plan, unless somebody before us made it
        self.released = False  # every rank has completed its last step: a loss from here on costs no state
        self.cause_count = 0

    # --- phase, generation, cause ------------------------------------------------------------------------------------

    @property
    def generation(self) -> Generation:
        return self.out.generation

    @property
    def cause(self) -> str:
        return self.out.cause

    def name_cause(self, kind: str) -> None:
        """What is said from here on is said because of something new."""
        self.cause_count += 1
        self.out.cause = f"{kind}-{self.cause_count}"

    def enter(self, phase: Phase, now: float, patience_s: float) -> None:
        self.phase, self.phase_deadline = phase, now + patience_s

    def stay_in(self, phase: Phase) -> None:
        """Nothing has to happen by any time."""
        self.phase, self.phase_deadline = phase, None

    @property
    def is_stopping(self) -> bool:
        """Fenced, and there is no plan yet."""
        return self.phase in (Phase.FENCING, Phase.WAITING)

    # --- members and seats -------------------------------------------------------------------------------------------

    @property
    def unfrozen(self) -> list[str]:
        """Who has not acknowledged the fence."""
        return [member.node for member in self.members.values() if member.inventory is None]

    @property
    def has_healthy_spare(self) -> bool:
        return any(member.position is None and not member.quarantined for member in self.members.values())

    @property
    def has_majority(self) -> bool:
        """Rule 18, one coordinator per term: those who are with us are so many that nobody else can have been elected
        without them. Only seats count: whoever is elected next learns of a plan that has gone from those who sit in
        it."""
        return self.quorum.has([*self._sitting(), *self._recalled()])

    def _sitting(self) -> list[Voter]:
        return [member.voter for member in self.members.values() if member.position is not None]

    def _recalled(self) -> set[Voter]:
        """Who ran and has lost its seat since, where too few of those who sit now have run: it sits again."""
        sitting = self._sitting()
        others = [member.voter for member in self.members.values() if member.position is None]
        return self.quorum.recalled(sitting, others, room=self.layout.positions - len(sitting))

    def has_majority_without(self, member: Member) -> bool:
        seated = [each for each in self.members.values() if each.position is not None and each is not member]
        return self.quorum.has([each.voter for each in seated])

    @property
    def voters(self) -> list[Voter]:
        """Who sits in the newest plan."""
        return [self.members[node].voter for node in self.seats]

    def changes_by(self, seats: tuple[str, ...]) -> Changes:
        """What a plan with these seats has to tell whoever elects the next coordinator."""
        return self.quorum.changes([self.members[node].voter for node in seats])

    def tell_seats(self, message: Any) -> None:
        """Only those who have a part in the plan: a node that joined since would not know what it is about."""
        self.out.send_each(self.seats, message)

    # --- for the planner ---------------------------------------------------------------------------------------------

    def view(self) -> View:
        return self._view_of(self.members.values())

    def _view_of(self, members: Iterable[Member]) -> View:
        recalled = self._recalled()
        return View(
            layout=self.layout,
            generation=self.generation,
            cause=self.cause,
            watermark=self.commits.permit.watermark,
            schedule=self.commits.schedule,
            committed=self.commits.committed,
            placement=self.commits.placement,
            nodes=tuple([m.view(recalled=bool(recalled) and m.voter in recalled) for m in members]),
            before=self.blueprint,
        )

    def newcomers(self) -> list[tuple[Member, int]]:
        """Who would be seated where it does not sit yet, were it planned now: seats do not depend on inventories."""
        may_move, sitting = [], {}
        for member in self.members.values():
            if member.position is None or member.leaving:
                may_move.append(member)
            else:
                sitting[member.position] = member.node
        seats = choose_seats(self._view_of(may_move), sitting)
        if isinstance(seats, NoPlan):
            return []
        chosen = [(self.members[node], position) for position, node in enumerate(seats)]
        return [(member, position) for member, position in chosen if member.position is None]

    def heir_of(self, position: int) -> str | None:
        """Who would take this position, were it given up now."""
        return next((member.node for member, taken in self.newcomers() if taken == position), None)
