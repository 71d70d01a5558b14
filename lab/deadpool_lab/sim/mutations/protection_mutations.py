"""Mutations of the rules of protection that follows the health of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deadpool.protocol.coding import Scheme
from deadpool.protocol.coordinator.recovery import global_plan
from deadpool.protocol.coordinator.recovery.placement import Placement, place
from deadpool.protocol.features.adaptation.coordinator import scheme_choice
from deadpool.protocol.features.adaptation.coordinator.adaptation import Adaptation, Outlook, Pacing, Suspect
from deadpool.protocol.features.adaptation.coordinator.scheme_choice import SCHEME, SchemeChoice
from deadpool.protocol.health import LIKELY, gravest
from deadpool_lab.sim.mutations.mutation import Mutation, Patch


def no_dwell_time(patch: Patch) -> None:
    patch.set(Pacing, "_has_dwelt", lambda self, subject, now: True)


def no_budget_of_changes(patch: Patch) -> None:
    patch.set(Pacing, "_has_budget", lambda self, now, raises: True)


def guard_at_the_cost_of_others(patch: Patch) -> None:
    """While a node is guarded, the copies of all others have one holder less."""

    def move(racks: Sequence[Any], scheme: Scheme, before: Placement, extra: frozenset[int]) -> Placement:
        if not extra or scheme.is_coded:
            return place(racks, scheme, before, extra)
        return place(racks, Scheme(copies=scheme.copies - 1), before, extra)

    patch.set(global_plan, "place", move)


def last_spare_for_a_doubtful_reason(patch: Patch) -> None:
    def is_to_leave(self: Adaptation, suspect: Suspect, outlook: Outlook) -> bool:
        return gravest(suspect.signs) >= LIKELY and outlook.spares >= 1

    patch.set(Adaptation, "_is_to_leave", is_to_leave)


def scheme_follows_memory_at_once(patch: Patch) -> None:
    """Lets the scheme follow the memory, with neither dwell time nor two limits."""
    patch.set(SchemeChoice, "may_return", lambda self, now: True)
    patch.set(scheme_choice, "FITS", 2.0)
    patch.set(scheme_choice, "LEFT_AFTER", -1.0)
    has_dwelt = Pacing._has_dwelt
    patch.set(Pacing, "_has_dwelt", lambda self, subject, now: subject == SCHEME or has_dwelt(self, subject, now))


def fewer_losses_for_less_memory(patch: Patch) -> None:
    patch.set(SchemeChoice, "coded_for", lambda self, outlook: self._bounds.coded)


def signs_that_most_nodes_show_count(patch: Patch) -> None:
    patch.set(Adaptation, "_without_shared_signs", lambda self, suspect: suspect)


MUTATIONS = [
    Mutation(51, "no dwell time", no_dwell_time, rule=28, profile="illness"),
    Mutation(52, "no budget of changes", no_budget_of_changes, rule=28, profile="illness"),
    Mutation(53, "guard at the cost of others", guard_at_the_cost_of_others, rule=28, profile="illness"),
    Mutation(54, "last spare for a doubtful reason", last_spare_for_a_doubtful_reason, rule=29, profile="illness"),
    Mutation(55, "signs that most nodes show count", signs_that_most_nodes_show_count, rule=29, profile="illness"),
    Mutation(56, "scheme follows memory at once", scheme_follows_memory_at_once, rule=28, profile="memory"),
    Mutation(57, "fewer losses for less memory", fewer_losses_for_less_memory, rule=28, profile="memory"),
]
