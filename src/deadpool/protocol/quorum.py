"""What a node has promised to coordinators, and how many nodes it takes to elect one. Values, and the rule over them.

Rule 18 (one coordinator per term): a majority of the nodes that sat in the last generation that went grants a term, and
its coordinator plans only when such a majority has acknowledged its fence. With one of the two alone, two jobs run in
some partitions; with both, in none. Until a generation has gone, the founding one stands for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from deadpool.protocol.identity import NO_GENERATION, Generation, Value

Voter = tuple[str, str]
"""Node and incarnation: a node that was started again has forgotten its promises, so it is another voter."""


class Promise(Value, frozen=True, kw_only=True):
    """To refuse every term below this one, and this one from any other candidate: two may have asked for the same."""

    term: int = 0
    to: str = ""

    def allows(self, term: int, by: str) -> bool:
        return term > self.term or (term == self.term and by == self.to)


NO_PROMISE = Promise()


class Changes(Value, frozen=True, kw_only=True):
    """The positions at which a plan seats another node than the generation `since` did. All others keep their nodes."""

    since: Generation = NO_GENERATION
    positions: tuple[int, ...] = ()


class Seated(Value, frozen=True, kw_only=True):
    """A seat that a plan gave to the node that heard it."""

    generation: Generation
    position: int
    changes: Changes


class Footing(Value, frozen=True, kw_only=True):
    """What a node tells a process that may become its coordinator, before it promises anything."""

    promise: Promise = NO_PROMISE
    generation: Generation = NO_GENERATION  # the newest it was fenced or seated in
    planned: Generation = NO_GENERATION  # of the newest plan it has heard
    position: int | None = None  # in that plan; None: a spare
    electorate: Generation = NO_GENERATION  # the newest that it has heard Go of, or the founding one
    vote: int | None = None  # its position in that
    newer: tuple[Seated, ...] = ()  # plans since then
    quarantined: bool = False  # as it was last told

    def seat_in(self, generation: Generation) -> int | None:
        if generation == self.electorate:
            return self.vote
        return next((seated.position for seated in self.newer if seated.generation == generation), None)

    def was_left_out(self, generation: Generation, changes: Changes) -> bool:
        """Tells whether that plan has a seat for this node that the node has not heard of."""
        keeps = self.electorate == changes.since and self.vote is not None and self.vote not in changes.positions
        return keeps and self.seat_in(generation) is None

    @property
    def is_new(self) -> bool:
        """Tells whether the node was never part of a generation, so that nothing depends on which coordinator it
        follows.
        """
        return self.generation == NO_GENERATION


def newest_plan(footings: Iterable[Footing]) -> Generation:
    return max((footing.planned for footing in footings), default=NO_GENERATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Electorate:
    """The nodes that sat in a generation, as far as they are known."""

    generation: Generation
    seats: tuple[Voter | None, ...]

    @property
    def is_represented(self) -> bool:
        return any(self.seats)

    def has_majority(self, voters: Collection[Voter]) -> bool:
        return 2 * sum(seat in voters for seat in self.seats if seat is not None) > len(self.seats)

    def changes(self, seats: Sequence[Voter]) -> Changes:
        """A seat whose node is not known counts as changed."""
        moved = [position for position, seat in enumerate(seats) if seat != self.seats[position]]
        return Changes(since=self.generation, positions=tuple(moved))


def electorates(positions: int, footings: Mapping[Voter, Footing]) -> tuple[Electorate, ...]:
    """A majority of each of these is needed: of the nodes seated in the last generation that went, as far as these
    nodes have heard, and of those seated in each newer one whose plan they have heard: it may have gone.

    Go needs that every seat has heard the plan. So a generation has not gone if one of these nodes was left out of its
    plan; and it never will, since these nodes promise to follow another coordinator."""
    went = max((footing.electorate for footing in footings.values()), default=NO_GENERATION)
    newer = {each for footing in footings.values() for each in footing.newer if each.generation > went}
    wanted = {each.generation for each in newer if not _is_impossible(each, footings.values())}
    return tuple(
        _electorate(generation, positions, footings) for generation in sorted({went, *wanted} - {NO_GENERATION})
    )


def _is_impossible(plan: Seated, footings: Iterable[Footing]) -> bool:
    return any(footing.was_left_out(plan.generation, plan.changes) for footing in footings)


def _electorate(generation: Generation, positions: int, footings: Mapping[Voter, Footing]) -> Electorate:
    sitting = {footing.seat_in(generation): voter for voter, footing in footings.items()}
    return Electorate(generation=generation, seats=tuple(sitting.get(position) for position in range(positions)))


class Quorum:
    """Whether these nodes are enough. `alone`: there can be no other coordinator, so any number is enough."""

    def __init__(self, *, alone: bool, electorates: tuple[Electorate, ...] = ()) -> None:
        self._alone = alone
        self.electorates = electorates

    def pass_to(self, generation: Generation, seats: Iterable[Voter]) -> None:
        """This generation has gone, or founds the job."""
        self.electorates = (Electorate(generation=generation, seats=tuple(seats)),)

    def has(self, voters: Iterable[Voter]) -> bool:
        if self._alone:
            return True
        there = frozenset(voters)
        return all(electorate.has_majority(there) for electorate in self.electorates)

    def recalled(self, sitting: Collection[Voter], others: Iterable[Voter], room: int) -> set[Voter]:
        """Which of the others have to sit too, for these to be enough. None, if they are enough already, or are not
        even with all of them. A node that votes in more electorates comes first."""
        if self.has(sitting):
            return set()
        votes = Counter(seat for electorate in self.electorates for seat in electorate.seats if seat is not None)
        wanted = sorted((voter for voter in others if voter in votes), key=lambda voter: (-votes[voter], voter))[:room]
        if not self.has([*sitting, *wanted]):
            return set()
        while self.has([*sitting, *wanted[:-1]]):
            wanted.pop()
        return set(wanted)

    def changes(self, seats: Sequence[Voter]) -> Changes:
        """What a plan that seats these nodes says about the seats it changes."""
        return self.electorates[0].changes(seats) if self.electorates else Changes()
