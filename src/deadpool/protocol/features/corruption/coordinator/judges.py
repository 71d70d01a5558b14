"""A spare as the judge: what follows from several computations of one step on several nodes. Values and pure functions
only.

A device that errs in the same way every time repeats itself, so that computing again on it shows nothing. Therefore the
ranks of one position, whose turn it is, are computed on another node too. What they compute is trusted only if two
different nodes agree on it:

    Settled     they do, and the newest computation is one of those that are trusted
    Again       not yet: the step is computed once more, and these nodes take these positions for it
    Unrepeated  nobody's turn it is, and no two computations agree
    Undecided   there is no further node that could tell

A computation that is unlike all others is repeated as it is before anybody moves: what an error that happens once has
changed agrees with nothing. Then the former node computes in a new process, since it may be the script that does
something else in one; then a third node. Where no further spare is there, a node with a seat exchanges it with a spare.

Rule 36, a spare is the judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deadpool.protocol.features.corruption.coordinator.computations import Computation, difference

COMPUTATIONS = 4
"""A step is computed so often at most, where no rank moves."""
COMPUTATIONS_WITH_JUDGES = 12
"""The same, where ranks move."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What all ranks have told of the step, and the node at each position then."""

    told: Computation
    seats: tuple[str, ...]

    def agrees_with(self, other: Computed) -> bool:
        return difference(self.told, other.told) is None


@dataclass(frozen=True, slots=True)
class Turn:
    """The position whose ranks other nodes compute too, and the node that had it."""

    position: int
    node: str


@dataclass(frozen=True, slots=True)
class Settled:
    trusted: tuple[Computed, ...]  # which agree; the newest one is the last


@dataclass(frozen=True, slots=True)
class Again:
    moves: Mapping[int, str]  # by position: the node that takes it. Empty: nobody moves


@dataclass(frozen=True, slots=True)
class Unrepeated:
    pass


@dataclass(frozen=True, slots=True)
class Undecided:
    pass


Decision = Settled | Again | Unrepeated | Undecided


def decide(computed: Sequence[Computed], turn: Turn | None, spares: Sequence[str]) -> Decision:
    """`spares`: nodes without a seat that may take one, those that are ready soonest first."""
    newest = computed[-1]
    alike = tuple(each for each in computed if each.agrees_with(newest))
    if turn is None:
        if len(alike) > 1:
            return Settled(alike)
        return Again({}) if len(computed) < COMPUTATIONS else Unrepeated()
    if all(_is_agreed(alike, position, computed[0], turn) for position in range(len(newest.seats))):
        return Settled(alike)
    if len(computed) >= COMPUTATIONS_WITH_JUDGES:
        return Undecided()
    if len(alike) == 1 and len(computed) > 1 and computed[-2].seats != newest.seats:
        return Again({})
    moves = next(_further_seats(computed, turn, spares), None)
    return Again(moves) if moves is not None else Undecided()


def _is_agreed(alike: Sequence[Computed], position: int, first: Computed, turn: Turn) -> bool:
    """Two different nodes agree on its ranks, or it is nobody's turn there and nobody has moved."""
    nodes = {each.seats[position] for each in alike}
    return len(nodes) > 1 or (position != turn.position and nodes == {first.seats[position]})


def _further_seats(computed: Sequence[Computed], turn: Turn, spares: Sequence[str]) -> Iterator[Mapping[int, str]]:
    """Yields moves to seats in which the step was not computed yet, those that tell most first."""
    sat = [each.seats[turn.position] for each in computed]
    moved = next((index for index, node in enumerate(sat) if node != turn.node), len(sat))
    if turn.node in spares and turn.node not in sat[moved:] and _has_repeated_itself(computed, turn):
        yield {turn.position: turn.node}
    for node in spares:
        if node not in sat:
            yield {turn.position: node}
    yield from _exchanges(computed, turn, spares)


def _has_repeated_itself(computed: Sequence[Computed], turn: Turn) -> bool:
    its_own = [each for each in computed if each.seats[turn.position] == turn.node]
    return any(each.agrees_with(other) for index, each in enumerate(its_own) for other in its_own[:index])


def _exchanges(computed: Sequence[Computed], turn: Turn, spares: Sequence[str]) -> Iterator[Mapping[int, str]]:
    """A node with a seat takes the position, and one of those that have computed its ranks takes that seat."""
    first, known = computed[0].seats, {each.seats for each in computed}
    sat = dict.fromkeys(each.seats[turn.position] for each in reversed(computed) if each.seats != first)
    other = next((position for position in range(len(first)) if position != turn.position), None)
    if other is None or computed[-1].seats[other] not in (first[other], *sat, turn.node):
        return
    there = {*spares, *computed[-1].seats}
    for node in (*(each for each in sat if each not in (turn.node, first[other])), turn.node):
        moves = {turn.position: first[other], other: node}
        seats = tuple(moves.get(position, seat) for position, seat in enumerate(first))
        if seats not in known and there.issuperset(moves.values()):
            yield moves


def odd_ones(computed: Sequence[Computed], settled: Settled) -> list[tuple[Computed, ...]]:
    """Computations that are not trusted: those that agree with each other together, in their order."""
    found: list[list[Computed]] = []
    for each in computed:
        if each.agrees_with(settled.trusted[-1]):
            continue
        alike = next((group for group in found if group[0].agrees_with(each)), None)
        if alike is None:
            found.append([each])
        else:
            alike.append(each)
    return [tuple(group) for group in found]


def nodes_only_in(odd: Sequence[Computed], settled: Settled) -> set[str]:
    """Nodes with a seat in each of these computations, and in none that is trusted. What they alone have computed says
    more than any stage: it does not matter how far an error has spread within the step."""
    return set.intersection(*(set(each.seats) for each in odd)) - {
        node for each in settled.trusted for node in each.seats
    }
