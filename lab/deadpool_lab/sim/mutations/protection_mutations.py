"""Mutations of protection, coding and durable checkpoints.

Mutations of the rules of protection that follows the health of nodes.

Mutations of the rules of erasure coding.

`counted_before_its_manifest`: Mutations of the rules of durable checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from deadpool.protocol.causes import Checkpoint
from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.recovery import global_plan
from deadpool.protocol.coordinator.recovery.placement import Placement, Rack, place
from deadpool.protocol.features.adaptation.coordinator import chosen_scheme
from deadpool.protocol.features.adaptation.coordinator.adaptation import Adaptation, Outlook, Pacing, Suspect
from deadpool.protocol.features.adaptation.coordinator.chosen_scheme import SCHEME, SchemeChoice
from deadpool.protocol.features.coding.agent import Accumulation
from deadpool.protocol.features.coding.coordinator import placement as coded_placement
from deadpool.protocol.features.coding.coordinator.groups import form_groups
from deadpool.protocol.features.durable.coordinator.writes import Write, Writes
from deadpool.protocol.health import LIKELY, gravest
from deadpool.protocol.identity import Version
from deadpool.protocol.schemes import NodeGroup, Scheme
from deadpool_lab.sim import arena, streams
from deadpool_lab.sim.mutations.mutation import Mutation, Patch


def no_dwell_time(patch: Patch) -> None:
    patch.set(Pacing, "_has_dwelt", lambda self, subject, now: True)


def no_budget_of_changes(patch: Patch) -> None:
    patch.set(Pacing, "_has_budget", lambda self, now, raises: True)


def guard_at_the_cost_of_others(patch: Patch) -> None:
    """While a node is guarded, the copies of all others have one holder less."""

    def move(racks: Sequence[Any], scheme: Scheme, before: Placement, extra: frozenset[int]) -> Placement:
        if not extra or scheme.in_groups:
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
    patch.set(chosen_scheme, "FITS", 2.0)
    patch.set(chosen_scheme, "LEFT_AFTER", -1.0)
    has_dwelt = Pacing._has_dwelt
    patch.set(Pacing, "_has_dwelt", lambda self, subject, now: subject == SCHEME or has_dwelt(self, subject, now))


def fewer_losses_for_less_memory(patch: Patch) -> None:
    patch.set(SchemeChoice, "coded_for", lambda self, outlook: self._bounds.in_groups)


def signs_that_most_nodes_show_count(patch: Patch) -> None:
    patch.set(Adaptation, "_without_shared_signs", lambda self, suspect: suspect)


def parity_counts_before_it_is_whole(patch: Patch) -> None:
    """The first contribution seals the parity, and all others count as if they were in it."""

    def add_stored_together(self: Ledger, ranks: tuple[int, ...], node: str, version: Version) -> None:
        position, places = self.nodes.index(node), self.places.setdefault(version, set())
        local = self.layout.local_rank(ranks[0])
        places.update((self.layout.ranks_at(p)[local], node) for p in self.placement.held_by(position))

    patch.set(Accumulation, "is_whole", property(lambda self: bool(self.copies)))
    patch.set(Ledger, "add_stored_together", add_stored_together)


def one_parity_for_all(patch: Patch) -> None:
    """Whatever the scheme says."""

    def one_parity(racks: tuple[Rack, ...], scheme: object, before: object) -> tuple[NodeGroup, ...]:
        groups = form_groups(racks, scheme, before)  # type: ignore[arg-type]
        return tuple(replace(group, parities=1) for group in groups)

    patch.set(coded_placement, "form_groups", one_parity)


def damaged_block_decoded(patch: Patch) -> None:
    """Decodes a damaged block, and compares nothing with the lost rank's own seal either."""
    patch.set(arena, "is_as_sealed", lambda found, sealed: True)
    patch.set(streams, "is_as_sealed", lambda found, sealed: True)


def groups_ignore_racks(patch: Patch) -> None:
    patch.set(coded_placement, "form_groups", lambda racks, scheme, before: form_groups([None] * len(racks), scheme))


def counted_before_its_manifest(patch: Patch) -> None:
    real = Writes._finish

    def finish(self: Writes, write: Write, now: float) -> None:
        copies = tuple(copy for _, copy in sorted(write.copies.items()))
        self._known.newest = Checkpoint(name=write.name, number=write.version.number, copies=copies)
        real(self, write, now)

    patch.set(Writes, "_finish", finish)


MUTATIONS = [
    Mutation(51, "no dwell time", no_dwell_time, rule=28, profile="illness"),
    Mutation(52, "no budget of changes", no_budget_of_changes, rule=28, profile="illness"),
    Mutation(53, "guard at the cost of others", guard_at_the_cost_of_others, rule=28, profile="illness"),
    Mutation(54, "last spare for a doubtful reason", last_spare_for_a_doubtful_reason, rule=29, profile="illness"),
    Mutation(55, "signs that most nodes show count", signs_that_most_nodes_show_count, rule=29, profile="illness"),
    Mutation(56, "scheme follows memory at once", scheme_follows_memory_at_once, rule=28, profile="memory"),
    Mutation(57, "fewer losses for less memory", fewer_losses_for_less_memory, rule=28, profile="memory"),
    Mutation(42, "parity counts before it is whole", parity_counts_before_it_is_whole, rule=27, profile="coded"),
    Mutation(43, "one parity whatever the scheme", one_parity_for_all, rule=27, profile="coded_pairs"),
    Mutation(44, "damaged block decoded", damaged_block_decoded, rule=24, profile="coded_pairs"),
    Mutation(45, "groups ignore racks", groups_ignore_racks, rule=17, profile="coded"),
    Mutation(41, "checkpoint without its manifest", counted_before_its_manifest, rule=25, profile="durable"),
]
