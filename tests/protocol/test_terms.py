"""Rule 18, one coordinator per term, walked through at random: never two coordinators that both have a generation run.

And there are two as soon as a plan needs no majority, or what nodes remember for elections is taken lightly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest
import terms
from terms import Split, World

from deadpool.protocol.identity import Generation
from deadpool.protocol.quorum import Changes, Electorate, Footing, Voter, electorates

Patch = pytest.MonkeyPatch
WALKS, EVENTS = 500, 250


def test_never_two() -> None:
    for seed in range(WALKS):
        World(seed).walk(EVENTS)


def planned_by_any_nodes(patch: Patch) -> None:
    """Elected by a majority all the same."""
    patch.setattr(terms.CoordinatorTerm, "is_enough", lambda self, seats: True)


def acknowledged_by_who_has_no_seat(patch: Patch) -> None:
    """A majority of the nodes that follow, also of those that leave or came back, and will not hear the plan's Go."""

    def is_enough(self: terms.CoordinatorTerm, seats: Iterable[str]) -> bool:
        return self._quorum.has([terms.voter(node) for node in self.members])

    patch.setattr(terms.CoordinatorTerm, "is_enough", is_enough)


def newer_plans_do_not_count(patch: Patch) -> None:
    def forgetful(positions: int, footings: Mapping[Voter, Footing]) -> tuple[Electorate, ...]:
        return electorates(positions, {voter: replace(footing, newer=()) for voter, footing in footings.items()})

    patch.setattr(terms, "electorates", forgetful)


def any_later_fence_rules_a_plan_out(patch: Patch) -> None:
    """Also of nodes that have no seat in it."""

    def was_left_out(self: Footing, generation: Generation, changes: Changes) -> bool:
        return self.vote is not None and self.generation >= generation and self.seat_in(generation) is None

    patch.setattr(Footing, "was_left_out", was_left_out)


@pytest.mark.parametrize(
    ("mutate", "seed"),
    [
        (planned_by_any_nodes, 14),
        (acknowledged_by_who_has_no_seat, 915),
        (newer_plans_do_not_count, 43),
        (any_later_fence_rules_a_plan_out, 11035),
    ],
)
def test_without_it_there_are_two(mutate: Callable[[Patch], None], seed: int, monkeypatch: Patch) -> None:
    """The seeds were searched for. Where the walk is changed others have to be found."""
    World(seed).walk(EVENTS)
    mutate(monkeypatch)
    with pytest.raises(Split):
        World(seed).walk(EVENTS)
