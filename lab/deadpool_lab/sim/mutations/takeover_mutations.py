"""Mutations of the rules of takeover: terms, majorities, and what a successor adopts."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from deadpool.protocol.agent.leadership.coordinator_liveness import TermGuard
from deadpool.protocol.agent.leadership.takeover_report import TakeoverRecord
from deadpool.protocol.agent.orders import Orders
from deadpool.protocol.agent.trainers.trainers import Trainer
from deadpool.protocol.coordinator.commits.commits import Commits
from deadpool.protocol.coordinator.leadership.election import Election
from deadpool.protocol.coordinator.leadership.takeover import RecoveredView
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Connect, Fence, Go, Permit, Plan, Welcome
from deadpool.protocol.quorum import Footing, Promise, Quorum
from deadpool_lab.sim.mutations.mutation import Mutation, Patch


def _let_in(patch: Patch, *kinds: type) -> None:
    real = TermGuard.admits

    def admits(self: TermGuard, term: int, message: Any) -> bool:
        return isinstance(message, kinds) or real(self, term, message)

    patch.set(TermGuard, "admits", admits)


def permits_of_any_term(patch: Patch) -> None:
    _let_in(patch, Permit)


def fences_and_plans_of_any_term(patch: Patch) -> None:
    _let_in(patch, Fence, Plan)


def release_outlives_the_fence(patch: Patch) -> None:
    patch.set(Trainer, "take_back_release", lambda self: None)


def lowest_permit_adopted(patch: Patch) -> None:
    lowest = property(
        lambda self: min(
            (t.permit for t in self.reports.values() if t.permit is not None),
            key=lambda permit: permit.keep_from,
            default=None,
        )
    )
    patch.set(RecoveredView, "permit", lowest)


def versions_passed_before_the_watermark(patch: Patch) -> None:
    def continue_running(self: Commits) -> str | None:
        self._running = True
        newest = max((version.number for version in self.ledger.places), default=0)
        self._set_permit(self.permit.watermark, max(self.permit.keep_from, newest + 1))
        return None

    patch.set(Commits, "continue_running", continue_running)


def lowest_permit_and_versions_passed_first(patch: Patch) -> None:
    """Two defects. A successor that passes versions before it has set the watermark goes unnoticed alone: under the
    highest permit everything that it passes is newer than the watermark, which stays."""
    lowest_permit_adopted(patch)
    versions_passed_before_the_watermark(patch)


def plan_without_a_majority(patch: Patch) -> None:
    """A leading coordinator plans without a majority; a candidate still needs one."""
    has, is_enough = Quorum.has, Election._is_enough
    elections: list[Election] = []  # that are being counted

    def counted(self: Election, footings: dict[str, Footing]) -> bool:
        elections.append(self)
        try:
            return is_enough(self, footings)
        finally:
            elections.pop()

    patch.set(Election, "_is_enough", counted)
    patch.set(Quorum, "has", lambda self, voters: not elections or has(self, voters))


def term_without_a_majority(patch: Patch) -> None:
    def is_enough(self: Election, footings: dict[str, Footing]) -> bool:
        return any(footing.position is not None for footing in footings.values())

    patch.set(Election, "_is_enough", is_enough)


def generation_without_term(patch: Patch) -> None:
    """A successor counts generations in the term of the coordinator before it."""
    patch.set(Generation, "next", lambda self, term: Generation(self.term, self.n + 1))


def terms_forgotten_at_the_fence(patch: Patch) -> None:
    """A node that was fenced by the coordinator of its promise no longer checks the term of an order that names its
    generation."""
    fenced: set[int] = set()  # witnesses, which live as long as their agents: as long as a seed
    fence, pledge, admits = Orders._fence, TermGuard.promise, TermGuard.admits

    def fence_and_forget(self: Orders, order: Fence, now: float) -> None:
        fenced.add(id(self._record))
        fence(self, order, now)

    def pledge_and_remember(self: TermGuard, welcome: Welcome) -> None:
        fenced.discard(id(self.record))
        pledge(self, welcome)

    def admits_by_generation(self: TermGuard, term: int, message: Any) -> bool:
        tells = isinstance(message, Fence | Plan | Connect | Go | Permit)
        return (tells and id(self.record) in fenced) or admits(self, term, message)

    patch.set(Orders, "_fence", fence_and_forget)
    patch.set(TermGuard, "promise", pledge_and_remember)
    patch.set(TermGuard, "admits", admits_by_generation)


def no_term_in_generations_or_orders(patch: Patch) -> None:
    """Two defects, each of which the other rule makes up for: what a generation without its term confuses is refused by
    the term of the order, and after a fence a generation with its term is newer than any that a deposed coordinator
    can name."""
    generation_without_term(patch)
    terms_forgotten_at_the_fence(patch)


def same_term_promised_to_two(patch: Patch) -> None:
    patch.set(Promise, "allows", lambda self, term, by: term >= self.term)


def misses_forgotten_with_the_coordinator(patch: Patch) -> None:
    real = TakeoverRecord.report
    patch.set(TakeoverRecord, "report", lambda self, *args, **named: replace(real(self, *args, **named), missed=()))


def newest_plan_alone_votes(patch: Patch) -> None:
    """Lets only the nodes that have heard the newest plan vote, not those that ran last."""

    def has(self: Quorum, voters: Any) -> bool:
        """A majority of its known seats."""
        known = [set(each.seats) - {None} for each in self.electorates[-1:]]
        return self._alone or all(2 * len(each.intersection(voters)) > len(each) for each in known)

    patch.set(Quorum, "has", has)


def recording_not_told_by_a_newcomer(patch: Patch) -> None:
    patch.set(Orders, "_tell_recordings", lambda self, plan: None)


MUTATIONS = [
    Mutation(12, "permits of any term", permits_of_any_term, rule=18, profile="succession"),
    Mutation(16, "fences and plans of any term", fences_and_plans_of_any_term, rule=18, profile="succession"),
    Mutation(17, "lowest permit adopted", lowest_permit_adopted, rule=18, profile="succession"),
    Mutation(
        13,
        "twice: lowest permit, versions passed first",
        lowest_permit_and_versions_passed_first,
        rule=18,
        profile="succession",
    ),
    Mutation(15, "plan without a majority", plan_without_a_majority, rule=18, profile="succession"),
    Mutation(18, "term without a majority", term_without_a_majority, rule=18, profile="succession"),
    Mutation(
        19, "twice: no term in generations or orders", no_term_in_generations_or_orders, rule=2, profile="succession"
    ),
    Mutation(
        20,
        "misses forgotten with the coordinator",
        misses_forgotten_with_the_coordinator,
        rule=18,
        profile="succession",
    ),
    Mutation(21, "newest plan alone votes", newest_plan_alone_votes, rule=18, profile="succession"),
    Mutation(40, "recording not told by a newcomer", recording_not_told_by_a_newcomer, rule=23, profile="succession"),
    Mutation(22, "same term promised to two", same_term_promised_to_two, rule=18, profile="succession"),
    Mutation(69, "release outlives the fence", release_outlives_the_fence, rule=33, profile="ending"),
]
