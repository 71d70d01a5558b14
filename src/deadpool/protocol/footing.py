"""Where a node stands with coordinators, and how many nodes it takes to make one. Values, and rule 18 over them.

A term is granted by a majority of the nodes that sat in the last generation that went, and its coordinator plans only
when such a majority has acknowledged its fence. Each alone lets two jobs run in some partitions; together none. Until
one has gone, the generation that the job was founded in stands for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from deadpool.protocol.identity import NO_GENERATION, Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """To refuse every term below this one, and this one from anybody else: two may have asked for the same."""

    term: int = 0
    to: str = ""

    def allows(self, term: int, by: str) -> bool:
        return term > self.term or (term == self.term and by == self.to)


NO_PROMISE = Promise()


@dataclass(frozen=True, slots=True, kw_only=True)
class Footing:
    """What a node says of itself to whoever may become its coordinator, before it promises anything."""

    promise: Promise = NO_PROMISE
    generation: Generation = NO_GENERATION  # the newest it was fenced or seated in
    planned: Generation = NO_GENERATION  # of the newest plan it has heard
    position: int | None = None  # in that plan; None: a spare
    electorate: Generation = NO_GENERATION  # the newest that it has heard Go of, or the founding one
    votes: bool = False  # it sits in that
    quarantined: bool = False  # as it was last told

    def sits_in(self, generation: Generation) -> bool:
        sits = self.planned == generation and self.position is not None
        return sits or (self.electorate == generation and self.votes)

    @property
    def is_new(self) -> bool:
        """It was never part of anything: nothing depends on whom it follows."""
        return self.generation == NO_GENERATION


def newest_plan(footings: Iterable[Footing]) -> Generation:
    return max((footing.planned for footing in footings), default=NO_GENERATION)


def electorates(footings: Mapping[str, Footing]) -> tuple[frozenset[str], ...]:
    """Of each of which a majority is needed: those seated in the last generation that went; and where a newer plan was
    heard of, those seated in it too, if it may have gone without these nodes having heard so."""
    went = max((footing.electorate for footing in footings.values()), default=NO_GENERATION)
    planned = newest_plan(footings.values())
    wanted = {went, planned} if _may_have_gone(planned, went, footings) else {went}
    return tuple(
        frozenset(node for node, footing in footings.items() if footing.sits_in(generation))
        for generation in sorted(wanted - {NO_GENERATION})
    )


def _may_have_gone(plan: Generation, went: Generation, footings: Mapping[str, Footing]) -> bool:
    """Go needs that every seat has heard the plan. Who ran until then, was fenced for it and has not heard it has a
    seat in it, and by the promise that it gives now will never hear it."""
    voters = (footing for footing in footings.values() if footing.sits_in(went))
    return not any(footing.generation >= plan > footing.planned for footing in voters)


@dataclass(slots=True)
class Quorum:
    """Whether these nodes are enough. `alone`: there can be no other coordinator, so that question does not arise."""

    positions: int
    alone: bool
    electorates: tuple[frozenset[str], ...] = field(default=())

    def pass_to(self, seats: Iterable[str]) -> None:
        """Their generation has gone, or founds the job."""
        self.electorates = (frozenset(seats),)

    def has(self, nodes: Collection[str]) -> bool:
        return self.alone or all(2 * len(each.intersection(nodes)) > self.positions for each in self.electorates)
