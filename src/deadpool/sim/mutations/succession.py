"""Broken rules of succession: terms, the majority, and what a successor takes over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deadpool.protocol.allegiance import Allegiance
from deadpool.protocol.candidacy import Candidacy
from deadpool.protocol.commits import Commits
from deadpool.protocol.estate import Estate
from deadpool.protocol.footing import Footing, Promise, Quorum
from deadpool.protocol.identity import Generation
from deadpool.protocol.job import Job
from deadpool.protocol.messages import Fence, Permit, Plan
from deadpool.protocol.witness import Witness
from deadpool.sim.mutations.mutation import Mutation, Patch


def _let_in(patch: Patch, *kinds: type) -> None:
    real = Allegiance.admits

    def admits(self: Allegiance, term: int, message: Any) -> bool:
        return isinstance(message, kinds) or real(self, term, message)

    patch.set(Allegiance, "admits", admits)


def permits_of_any_term(patch: Patch) -> None:
    _let_in(patch, Permit)


def fences_and_plans_of_any_term(patch: Patch) -> None:
    _let_in(patch, Fence, Plan)


def lowest_permit_and_versions_passed_first(patch: Patch) -> None:
    """Neither the highest permit is adopted, nor the watermark set, before versions are passed over."""
    lowest = property(
        lambda self: min(
            (t.permit for t in self.testimonies.values() if t.permit is not None),
            key=lambda permit: permit.keep_from,
            default=None,
        )
    )
    patch.set(Estate, "permit", lowest)
    real = Commits.take_up

    def take_up(self: Commits) -> str | None:
        newest = max((version.number for version in self.ledger.places), default=0)
        self.permit = replace(self.permit, keep_from=max(self.permit.keep_from, newest))
        return real(self)

    patch.set(Commits, "take_up", take_up)


def versions_passed_before_the_watermark(patch: Patch) -> None:
    def take_up(self: Commits) -> str | None:
        self._running = True
        newest = max((version.number for version in self.ledger.places), default=0)
        self._set_permit(self.permit.watermark, max(self.permit.keep_from, newest + 1))
        return None

    patch.set(Commits, "take_up", take_up)


def plan_without_a_majority(patch: Patch) -> None:
    patch.set(Job, "has_majority", property(lambda self: True))


def term_without_a_majority(patch: Patch) -> None:
    def is_enough(self: Candidacy, footings: dict[str, Footing]) -> bool:
        return any(footing.position is not None for footing in footings.values())

    patch.set(Candidacy, "_is_enough", is_enough)


def generation_without_term(patch: Patch) -> None:
    """A successor counts on in the term of the one before."""
    patch.set(Generation, "next", lambda self, term: Generation(self.term, self.n + 1))


def same_term_promised_to_two(patch: Patch) -> None:
    patch.set(Promise, "allows", lambda self, term, by: term >= self.term)


def misses_forgotten_with_the_coordinator(patch: Patch) -> None:
    real = Witness.testify
    patch.set(Witness, "testify", lambda self, *args, **named: replace(real(self, *args, **named), missed=()))


def newest_plan_alone_votes(patch: Patch) -> None:
    """Only those who have heard the newest plan vote, not those who ran last."""

    def has(self: Quorum, voters: Any) -> bool:
        """A majority of who is known of it."""
        known = [set(each.seats) - {None} for each in self.electorates[-1:]]
        return self._alone or all(2 * len(each.intersection(voters)) > len(each) for each in known)

    patch.set(Quorum, "has", has)


MUTATIONS = [
    Mutation("12 permits of any term", permits_of_any_term, "succession"),
    Mutation("12 fences and plans of any term", fences_and_plans_of_any_term, "succession"),
    Mutation("13 lowest permit, versions passed first", lowest_permit_and_versions_passed_first, "succession"),
    Mutation("15 plan without a majority", plan_without_a_majority, "succession"),
    Mutation("15 term without a majority", term_without_a_majority, "succession"),
    Mutation("18 misses forgotten with the coordinator", misses_forgotten_with_the_coordinator, "succession"),
    Mutation("18 newest plan alone votes", newest_plan_alone_votes, "succession"),
    Mutation("18 same term promised to two", same_term_promised_to_two, "succession"),
]
MASKED = [
    Mutation("13 versions passed before the watermark", versions_passed_before_the_watermark, "succession"),
    Mutation("15 generation without term", generation_without_term, "succession"),
]
"""Not noticed, as the models behind the protocol have it too: where the highest permit is adopted, a watermark that is
set late costs nothing; and whatever a generation without its term would confuse is refused by the term of the order."""
