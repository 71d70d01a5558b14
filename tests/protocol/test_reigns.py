"""Rule 18, walked through at random: never two coordinators that both have a generation run.

And there are two as soon as a plan needs no majority, or what nodes remember for elections is taken lightly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import reigns
from reigns import Split, World

from deadpool.protocol.footing import Changes, Electorate, Footing, Voter, electorates
from deadpool.protocol.identity import Generation

Patch = pytest.MonkeyPatch
WALKS, EVENTS = range(1000, 2000), 250


def walk() -> None:
    for seed in WALKS:
        World(seed).walk(EVENTS)


def test_never_two() -> None:
    walk()


def planned_by_anybody(patch: Patch) -> None:
    """Elected by a majority all the same."""
    patch.setattr(reigns.Reign, "is_enough", lambda self, seats: True)


def newer_plans_do_not_count(patch: Patch) -> None:
    def forgetful(positions: int, footings: Mapping[Voter, Footing]) -> tuple[Electorate, ...]:
        return electorates(positions, {voter: replace(footing, newer=()) for voter, footing in footings.items()})

    patch.setattr(reigns, "electorates", forgetful)


def any_later_fence_rules_a_plan_out(patch: Patch) -> None:
    """Also of who has no seat in it."""

    def was_left_out(self: Footing, generation: Generation, changes: Changes) -> bool:
        return self.vote is not None and self.generation >= generation and self.seat_in(generation) is None

    patch.setattr(Footing, "was_left_out", was_left_out)


@pytest.mark.parametrize(
    "mutate",
    [
        planned_by_anybody,
        newer_plans_do_not_count,
        any_later_fence_rules_a_plan_out,
    ],
)
def test_without_it_there_are_two(mutate, monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    with pytest.raises(Split):
        walk()
