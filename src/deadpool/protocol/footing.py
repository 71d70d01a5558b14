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
    seated: tuple[Generation, ...] = ()  # newer plans that it has heard, and has a seat in
    unheard: tuple[Generation, ...] = ()  # newer ones that it was fenced for, and would have a seat in

    def sits_in(self, generation: Generation) -> bool:
        return generation in self.seated or (self.electorate == generation and self.votes)

    @property
    def is_new(self) -> bool:
        """It was never part of anything: nothing depends on whom it follows."""
        return self.generation == NO_GENERATION


def newest_plan(footings: Iterable[Footing]) -> Generation:
    return max((footing.planned for footing in footings), default=NO_GENERATION)


def electorates(footings: Mapping[str, Footing]) -> tuple[frozenset[str], ...]:
    """Of each of which a majority is needed: those seated in the last generation that went, as far as these nodes have
    heard, and those seated in each newer one that they have heard the plan of, and that may have gone unheard.

    Go needs that every seat has heard the plan. So it has not gone if one of these nodes has a seat in it and has not
    heard it; and it never will, since these nodes promise to listen to somebody else."""
    went = max((footing.electorate for footing in footings.values()), default=NO_GENERATION)
    heard = {generation for footing in footings.values() for generation in footing.seated if generation > went}
    impossible = {generation for footing in footings.values() for generation in footing.unheard}
    return tuple(
        frozenset(node for node, footing in footings.items() if footing.sits_in(generation))
        for generation in sorted({went, *heard} - impossible - {NO_GENERATION})
    )


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
