"""Mutations of the rules of erasure coding."""

from __future__ import annotations

from msgspec.structs import replace

from deadpool.protocol.agent.copies.parities import Accumulation
from deadpool.protocol.coding import NodeGroup
from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.protection.coding_groups import Rack, form_groups
from deadpool.protocol.coordinator.recovery import placement
from deadpool.protocol.identity import Version
from deadpool_lab.sim import coding, streams
from deadpool_lab.sim.mutations.mutation import Mutation, Patch


def parity_counts_before_it_is_whole(patch: Patch) -> None:
    """The first contribution seals the parity, and all others count as if they were in it."""

    def add_encoded(self: Ledger, ranks: tuple[int, ...], node: str, version: Version) -> None:
        position, places = self.nodes.index(node), self.places.setdefault(version, set())
        local = self.layout.local_rank(ranks[0])
        places.update((self.layout.ranks_at(p)[local], node) for p in self.placement.held_by(position))

    patch.set(Accumulation, "is_whole", property(lambda self: bool(self.copies)))
    patch.set(Ledger, "add_encoded", add_encoded)


def one_parity_for_all(patch: Patch) -> None:
    """Whatever the scheme says."""

    def one_parity(racks: tuple[Rack, ...], scheme: object, before: object) -> tuple[NodeGroup, ...]:
        groups = form_groups(racks, scheme, before)  # type: ignore[arg-type]
        return tuple(replace(group, parities=1) for group in groups)

    patch.set(placement, "form_groups", one_parity)


def damaged_block_decoded(patch: Patch) -> None:
    """Decodes a damaged block, and compares nothing with the lost rank's own seal either."""
    patch.set(coding, "is_as_sealed", lambda found, sealed: True)
    patch.set(streams, "is_as_sealed", lambda found, sealed: True)


def groups_ignore_racks(patch: Patch) -> None:
    patch.set(placement, "form_groups", lambda racks, scheme, before: form_groups([None] * len(racks), scheme))


MUTATIONS = [
    Mutation(42, "parity counts before it is whole", parity_counts_before_it_is_whole, rule=27, profile="coded"),
    Mutation(43, "one parity whatever the scheme", one_parity_for_all, rule=27, profile="coded_pairs"),
    Mutation(44, "damaged block decoded", damaged_block_decoded, rule=24, profile="coded_pairs"),
    Mutation(45, "groups ignore racks", groups_ignore_racks, rule=17, profile="coded"),
]
