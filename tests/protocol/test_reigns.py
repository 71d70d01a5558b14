"""Rule 18, walked through at random: never two coordinators that both have a generation run.

And there are two as soon as a plan needs no majority, or what nodes remember for elections is taken lightly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import reigns
from reigns import Split, World

from deadpool.protocol.footing import Footing, electorates
from deadpool.protocol.identity import NO_GENERATION, Generation

Patch = pytest.MonkeyPatch
WALKS, EVENTS = range(1000, 2000), 250


def walk() -> None:
    for seed in WALKS:
        World(seed).walk(EVENTS)


def test_never_two() -> None:
    walk()


def planned_by_anybody(patch: Patch) -> None:
    """Elected by a majority all the same."""
    patch.setattr(reigns.Reign, "is_enough", lambda self: True)


def newer_plans_do_not_count(patch: Patch) -> None:
    def forgetful(footings: Mapping[str, Footing]) -> tuple[frozenset[str], ...]:
        return electorates({node: replace(footing, seated=()) for node, footing in footings.items()})

    patch.setattr(reigns, "electorates", forgetful)


def any_later_fence_rules_a_plan_out(patch: Patch) -> None:
    """Also one by somebody else, who knew this node when the planner did not."""

    def rash(footings: Mapping[str, Footing]) -> tuple[frozenset[str], ...]:
        plans = {plan for footing in footings.values() for plan in footing.seated}
        return electorates({node: replace(f, unheard=_missed(f, plans)) for node, f in footings.items()})

    patch.setattr(reigns, "electorates", rash)


def _missed(footing: Footing, plans: set[Generation]) -> tuple[Generation, ...]:
    before = [plan for plan in plans if footing.electorate < plan <= footing.generation]
    return tuple(plan for plan in before if plan not in footing.seated and footing.electorate != NO_GENERATION)


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
