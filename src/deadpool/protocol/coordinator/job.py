"""The state of the job as its coordinator sees it: generation and cause, phase, members, seats.

All parts of the coordinator share one `JobState` and change it through its methods. What follows from a change is
decided by the part that makes it, which then calls the part that comes next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from deadpool.protocol.coordinator.commits.commits import Commits
from deadpool.protocol.coordinator.membership.members import Member, SilentNodes, SpareWatch
from deadpool.protocol.coordinator.outbox import CoordinatorConfig, Outbox
from deadpool.protocol.coordinator.protection.redundancy import COPIES_ONLY, Redundancy
from deadpool.protocol.coordinator.recovery.global_plan import (
    SPARES_AWAITED,
    ClusterView,
    GlobalPlan,
    NoPlan,
    Vacancies,
)
from deadpool.protocol.coordinator.recovery.inventory_index import is_void
from deadpool.protocol.coordinator.recovery.placement import Placement
from deadpool.protocol.coordinator.recovery.seats import choose_seats
from deadpool.protocol.coordinator.recovery.unread_copies import UnreadCopies
from deadpool.protocol.identity import NO_GENERATION, Generation, Version
from deadpool.protocol.messages import Inventory, OrderMessage
from deadpool.protocol.quorum import Changes, Electorate, Quorum, Voter
from deadpool.protocol.schemes import Scheme


class Phase(Enum):
    FORMING = "forming"
    FENCING = "fencing"
    WAITING = "waiting"
    PREPARING = "preparing"
    CONNECTING = "connecting"
    RUNNING = "running"
    SALVAGING = "salvaging"  # the job cannot go on: what is left of it is written to disk
    RESIGNED = "resigned"  # without a majority: another coordinator may have been elected
    ENDED = "ended"


class JobState:
    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        term: int,
        name: str,
        vacancies: Vacancies = SPARES_AWAITED,
        redundancy: Redundancy = COPIES_ONLY,
    ) -> None:
        self.settings, self.deadlines, self.layout = config.settings, config.deadlines, config.settings.layout
        self.fault_limit = config.fault_limit
        self.term, self.name = term, name
        self.generation: Generation = NO_GENERATION
        self.cause = ""  # of this generation: every event and every plan names it
        self._cause_count = 0
        self.out = Outbox(self)
        self.quorum = Quorum(alone=config.is_alone)
        self.commits = Commits(self.layout, config.schedule, self.out)
        self.phase = Phase.FORMING
        self.entered_at = 0.0  # when a phase with a deadline was entered
        self.phase_deadline: float | None = None
        self.members: dict[str, Member] = {}
        self._closed: list[Inventory | None] = []  # what members froze at the fence before this one
        self.silent = SilentNodes()
        self.cut_off: set[str] = set()  # nodes that did not reach others: they are seated where no other is left
        self.rehearsed_first: list[str] = []  # nodes whose ranks spares rehearse before those of others
        self.held_once_more: set[str] = set()  # nodes whose ranks get a further holder from the next plan on
        self.leave_requests: dict[str, str] = {}  # nodes that were told to end, in this order: why
        self.seats: tuple[str, ...] = ()  # of the newest plan
        self.asked_scheme = config.scheme or Scheme(copies=self.layout.holders)  # when the job was started
        self.scheme = self.asked_scheme  # counts from the next plan on
        self.plan: GlobalPlan | None = None  # the newest plan, unless an earlier coordinator made it
        self.unread = UnreadCopies()
        self.void: tuple[Version, ...] = ()  # see `make_void_above`
        self._moves: tuple[Generation, Mapping[int, str]] = (NO_GENERATION, {})  # see `move`
        self.vacancies, self.redundancy = vacancies, redundancy
        self.released = False  # every rank has completed its last step: a loss from here on costs no state
        self._spare_watch = SpareWatch()

    # --- generation, cause, phase -------------------------------------------------------------------------------------

    def begin_generation(self, generation: Generation, cause: str) -> None:
        """The first one of the job, or the one that a successor finds."""
        self.generation, self.cause = generation, cause

    def next_generation(self) -> None:
        """Begins the next generation at a fence. What nodes froze at the fence before counts no more. Rule 33 (a fence
        takes the release back): who has released does not fence, since no state can be lost any more."""
        assert not self.released, f"{self.generation} was released"
        self.generation = self.generation.next(self.term)
        self._closed = [member.inventory for member in self.members.values()]
        for member in self.members.values():
            member.inventory = None

    def free_closed(self) -> None:
        """What nodes froze at the fence before is freed after Go, because that takes time."""
        self._closed.clear()

    def name_cause(self, kind: str) -> None:
        """Everything that is said from here on is said because of something new."""
        self._cause_count += 1
        self.cause = f"{kind}-{self._cause_count}"

    def take_over(self, members: Iterable[Member], electorates: tuple[Electorate, ...], causes: int) -> None:
        """What a successor finds. `causes`: no earlier coordinator has given a cause a higher number."""
        self.members = {member.node: member for member in members}
        self.quorum.electorates = electorates
        self._cause_count = causes

    def take_up_protection(self, scheme: Scheme | None, placement: Placement) -> None:
        """Takes up the protection as the coordinator before has placed copies, so that nothing moves because of the
        takeover.
        """
        self.scheme = scheme or self.scheme
        self.rehearsed_first = [each.node for each in self.members.values() if each.position in placement.extra]
        self.held_once_more = set(self.rehearsed_first)

    def enter(self, phase: Phase, now: float, patience_s: float) -> None:
        self.phase, self.entered_at, self.phase_deadline = phase, now, now + patience_s

    def enter_without_deadline(self, phase: Phase) -> None:
        self.phase, self.phase_deadline = phase, None

    def discount_stall(self, seconds: float) -> None:
        """Rule 20, timeouts: the coordinator itself did not run for so long."""
        for member in self.members.values():
            member.heard += seconds
        self.entered_at += seconds
        if self.phase_deadline is not None:
            self.phase_deadline += seconds

    @property
    def is_stopping(self) -> bool:
        """The job is fenced, and there is no plan yet."""
        return self.phase is Phase.FENCING or self.phase is Phase.WAITING

    @property
    def can_drain(self) -> bool:
        return self.phase is Phase.RUNNING and not self.released

    def make_void_above(self, version: Version) -> None:
        """No plan uses anything that was computed after this version up to now, whoever has it: neither copies nor the
        memory of trainers."""
        begins_anew = self.generation if self.is_stopping else self.generation.next(self.term)
        bound = Version(begins_anew, version.number)
        if bound not in self.void:
            self.void = (*self.void, bound)

    def move(self, moves: Mapping[int, str]) -> None:
        """In the plan of the next generation, and in no later one, these nodes take these positions."""
        self._moves = (self.generation.next(self.term), moves)

    @property
    def _moves_now(self) -> Mapping[int, str]:
        generation, moves = self._moves
        return moves if generation == self.generation else {}

    def is_void(self, version: Version) -> bool:
        return is_void(version, self.void)

    # --- members ------------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        self.members[member.node] = member
        self.silent.came_back(member.node)

    def remove(self, node: str) -> Member | None:
        """Removes a node: nothing that it says counts any more. It returns None if the node was not a member."""
        self.leave_requests.pop(node, None)
        return self.members.pop(node, None)

    def request_leave(self, node: str, reason: str) -> None:
        """The node was told to end. It is granted when it can be."""
        self.leave_requests[node] = reason

    def warn_if_no_spare(self) -> None:
        """To be called whenever a node has come, gone, or taken a seat."""
        if self._spare_watch.is_last_gone(self.members.values()):
            reason = f"no spare is left: after the next loss the job {self.vacancies.prospect}"
            self.out.emit("no_spare", reason=reason)

    @property
    def unfrozen(self) -> list[str]:
        """Nodes that have not acknowledged the fence."""
        return [member.node for member in self.members.values() if member.inventory is None]

    @property
    def has_healthy_spare(self) -> bool:
        return any(member.position is None and not member.quarantined for member in self.members.values())

    # --- seats and the majority ---------------------------------------------------------------------------------------

    def adopt(self, plan: GlobalPlan) -> None:
        self.plan, self.seats = plan, plan.seats
        for member in self.members.values():
            member.position, member.further_positions = None, ()  # a node that leaves has given up its own
        of_processes = plan.seating.process_positions
        for position, node in enumerate(plan.seats):
            if of_processes[node] == position:
                self.members[node].position, self.members[node].has_run = position, True
            else:
                self.members[node].further_positions += (position,)

    @property
    def is_full(self) -> bool:
        """Whether every position has a node of its own in the newest plan. An earlier coordinator's plan is not known:
        then its seats are full, or there will be another one."""
        return self.plan is None or self.plan.seating.is_full

    @property
    def seated_nodes(self) -> int:
        return self.layout.positions if self.is_full else len(set(self.seats))

    def release(self) -> None:
        self.released = True

    @property
    def has_majority(self) -> bool:
        """Rule 18, one coordinator per term: the members are so many that no other coordinator can have been elected
        without them. Only seats count, because a successor learns of a plan that has gone from the nodes that sit in
        it."""
        return self.quorum.has([*self._sitting(), *self._recalled()])

    def _sitting(self) -> list[Voter]:
        return [member.voter for member in self.members.values() if member.position is not None]

    def _recalled(self) -> set[Voter]:
        """Nodes that ran and have lost their seats since, where too few of the nodes that sit now have run. They get
        seats again."""
        sitting = self._sitting()
        others = [member.voter for member in self.members.values() if member.position is None]
        return self.quorum.recalled(sitting, others, room=self.layout.positions - len(sitting))

    def has_majority_without(self, *members: Member) -> bool:
        seated = [each for each in self.members.values() if each.position is not None and each not in members]
        return self.quorum.has([each.voter for each in seated])

    @property
    def voters(self) -> list[Voter]:
        """The nodes that sit in the newest plan."""
        return [self.members[node].voter for node in self.seats]

    def changes_by(self, seats: tuple[str, ...]) -> Changes:
        """What a plan with these seats has to tell the nodes that elect the next coordinator."""
        return self.quorum.changes([self.members[node].voter for node in seats])

    def send_seats(self, message: OrderMessage) -> None:
        """Sends a message to the nodes that have a part in the plan: a node that joined since would not know what it is
        about.
        """
        self.out.send_each(tuple(dict.fromkeys(self.seats)), message)

    # --- for the planner ----------------------------------------------------------------------------------------------

    def view(self) -> ClusterView:
        return self._view_of(self.members.values())

    def _view_of(self, members: Iterable[Member]) -> ClusterView:
        recalled = self._recalled()
        return ClusterView(
            layout=self.layout,
            generation=self.generation,
            cause=self.cause,
            watermark=self.commits.permit.watermark,
            schedule=self.commits.schedule,
            committed=self.commits.committed,
            placement=self.commits.placement,
            nodes=tuple([m.view(recalled=bool(recalled) and m.voter in recalled) for m in members]),
            before=self.plan,
            unread=self.unread.given_up,
            void=self.void,
            vacancies=self.vacancies,
            redundancy=self.redundancy,
            scheme=self.scheme,
            extra_holders=self.extra_holders,
            moves=self._moves_now,
        )

    @property
    def extra_holders(self) -> frozenset[int]:
        """Positions whose ranks are to have one more holder. A node that leaves does not take that with it."""
        nodes = [self.members[node] for node in self.held_once_more if node in self.members]
        return frozenset(each.position for each in nodes if each.position is not None and not each.leaving)

    @property
    def positions_rehearsed_first(self) -> list[int]:
        nodes = [self.members[node] for node in self.rehearsed_first if node in self.members]
        return [each.position for each in nodes if each.position is not None and not each.leaving]

    def newcomers(self) -> list[tuple[Member, int]]:
        """Nodes that a plan made now would seat where they do not sit yet. Seats do not depend on inventories, so this
        is known before the fence is acknowledged."""
        may_move, sitting, moves = [], {}, self._moves_now
        for member in self.members.values():
            is_moved = member.node in moves.values() or member.position in moves
            if member.position is None or member.leaving or is_moved:
                may_move.append(member)
            else:
                sitting[member.position] = member.node
        seats = choose_seats(self._view_of(may_move), sitting)
        if isinstance(seats, NoPlan) and not self.vacancies.may_fill:
            return []
        named = enumerate(seats.seats if isinstance(seats, NoPlan) else seats)
        chosen = [(self.members[node], position) for position, node in named if node is not None]
        return [(member, position) for member, position in chosen if member.position is None]

    def successor_at(self, position: int) -> str | None:
        """The node that would take this position if it were given up now."""
        return next((member.node for member, taken in self.newcomers() if taken == position), None)
