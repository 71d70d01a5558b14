"""Mutations of rule 34, replicas vote."""

from __future__ import annotations

from collections import Counter

from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.features.corruption.coordinator.corruption import Corruption
from deadpool.protocol.features.corruption.coordinator.votes import Digest, Group, Suspicion
from deadpool.protocol.identity import Version
from deadpool_lab.sim.mutations.mutation import Mutation, Patch


def version_that_differs_is_committed(patch: Patch) -> None:
    patch.set(Corruption, "withholds", lambda self, version: False)
    patch.set(Ledger, "unmatched", lambda self, version: ())


def what_follows_is_not_void(patch: Patch) -> None:
    patch.set(JobState, "make_void_above", lambda self, version: None)


def nothing_is_compared_under_a_fence(patch: Patch) -> None:
    patch.set(Corruption, "on_frozen", lambda self: None)


def half_is_a_majority(patch: Patch) -> None:
    def majority(self: Group) -> Digest | None:
        return Counter(each.digest for each in self.ballots).most_common(1)[0][0]

    patch.set(Group, "majority", property(majority))


def watermark_is_void_too(patch: Patch) -> None:
    real = JobState.make_void_above

    def make_void_above(self: JobState, version: Version) -> None:
        real(self, Version(version.generation, version.number - 1))

    patch.set(JobState, "make_void_above", make_void_above)


def first_that_changes_is_named(patch: Patch) -> None:
    """Names a node also where all have changed, since the script is not exact."""
    real = Suspicion.changed

    def changed(self: Suspicion, ballots):  # type: ignore[no-untyped-def]
        return real(self, ballots)[:1]

    patch.set(Suspicion, "changed", changed)
    patch.set(Suspicion, "is_repeated", lambda self, ballots: True)


MUTATIONS = [
    Mutation(70, "version that differs is committed", version_that_differs_is_committed, rule=34, profile="corruption"),
    Mutation(71, "what follows is not void", what_follows_is_not_void, rule=34, profile="corruption"),
    Mutation(72, "nothing compared under a fence", nothing_is_compared_under_a_fence, rule=34, profile="corruption"),
    Mutation(73, "half is a majority", half_is_a_majority, rule=34, profile="corruption"),
    Mutation(74, "watermark is void too", watermark_is_void_too, rule=34, profile="corruption"),
    Mutation(75, "first that changes is named", first_that_changes_is_named, rule=34, profile="corruption"),
]
