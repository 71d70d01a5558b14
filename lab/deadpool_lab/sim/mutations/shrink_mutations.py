"""Mutations of rule 30, carried ranks."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from deadpool.protocol.agent.copies.slots import Slots
from deadpool.protocol.agent.trainers.trainers import NodeTrainers
from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.recovery.inventory_index import VersionIndex
from deadpool.protocol.features.shrink.coordinator import carriers as shrink
from deadpool.protocol.features.shrink.coordinator import vacancies
from deadpool.protocol.features.shrink.coordinator.growth import Growth
from deadpool.protocol.identity import Layout, Version
from deadpool.protocol.messages import Copy, Live, Restore, Shares
from deadpool.protocol.schemes import Scheme
from deadpool_lab.sim.mutations.mutation import Mutation, Patch
from deadpool_lab.sim.process.seating import Seating


def memory_of_a_carrier_as_evidence(patch: Patch) -> None:
    """Takes a carrier's memory as evidence also for the ranks that it carries."""
    real = NodeTrainers.lives

    def lives(self: NodeTrainers) -> tuple[Live, ...]:
        carriers = [(t.live, t.further_ranks) for t in self.seated() if t.live is not None]
        return (*real(self), *(replace(live, rank=rank) for live, carried in carriers for rank in carried))

    def count_live(self: VersionIndex, ranks: tuple[int, ...], position: int, seats: tuple[int, ...]) -> None:
        self._stand.update(ranks)

    patch.set(NodeTrainers, "lives", lives)
    patch.set(VersionIndex, "count_live", count_live)


def record_of_the_carrier_used(patch: Patch) -> None:
    """The data of a carried rank goes on where that of its carrier does."""

    def carry(self: Seating, restore: Restore) -> None:
        self._process.courses = dict.fromkeys(self._process.courses, self._process.state.course)

    patch.set(Seating, "_carry", carry)


def half_a_replica_goes_on(patch: Patch) -> None:
    """Each node for itself, carried by one with the same tensors where there is one."""
    real, size = shrink._blocks, 1

    def blocks(layout: Layout, rank: int, shares: Shares) -> list[shrink.Block] | str:
        nonlocal size
        found = real(layout, rank, shares)
        if isinstance(found, str):
            return found
        size = len(found[0])
        return [(position,) for position in range(layout.positions)]

    def carriers(blocks: list[shrink.Block], whole: list[shrink.Block]) -> dict[int, int]:
        present = [block[0] for block in whole]
        missing = [block[0] for block in blocks if block[0] not in present]
        return {p: min(present, key=lambda q: ((q - p) % size != 0, q)) for p in missing}

    patch.set(shrink, "_blocks", blocks)
    patch.set(shrink, "_carriers", carriers)


def fewer_nodes_than_copies_need(patch: Patch) -> None:
    real = shrink.shrink

    def without_bound(layout: Layout, seats: Any, nodes: Any, scheme: Scheme, known: Any) -> shrink.Shrunk | str:
        return real(layout, seats, nodes, Scheme(copies=0), known)

    patch.set(vacancies, "shrink", without_bound)


def replicas_at_one_home_not_sent(patch: Patch) -> None:
    """Does not send replicas at one home, and nobody looks at where replicas are."""
    patch.set(Slots, "peers_elsewhere", lambda self, rank: self.peers.get(rank, ()))
    patch.set(Ledger, "_home_of", lambda self, rank: self.layout.position_of(rank))


def spares_not_taken(patch: Patch) -> None:
    patch.set(Growth, "_grow_if_possible", lambda self, now: None)


def carried_by_a_rank_with_other_tensors(patch: Patch) -> None:
    real = shrink._carriers

    def carriers(blocks: list[shrink.Block], whole: list[shrink.Block]) -> dict[int, int]:
        found = real(blocks, whole)
        return dict(zip(found, reversed(found.values()), strict=True))

    patch.set(shrink, "_carriers", carriers)


def copies_of_the_carrier_count_for_all(patch: Patch) -> None:
    """A version counts when the copies of the ranks with processes are there."""
    add_sealed, add_stored = Ledger.add_sealed, Ledger.add_stored

    def alike(self: Ledger, rank: int) -> list[int]:
        local, home = self.layout.local_rank(rank), self._home_of(rank)
        positions = [p for p, node in enumerate(self.nodes) if node == home]
        return [self.layout.ranks_at(position)[local] for position in positions]

    def sealed(self: Ledger, copy: Copy) -> None:
        add_sealed(self, copy)
        self.places[copy.seal.version].update((rank, None) for rank in alike(self, copy.seal.rank))

    def stored(self: Ledger, rank: int, node: str, version: Version) -> None:
        for each in alike(self, rank):
            add_stored(self, each, node, version)

    patch.set(Ledger, "add_sealed", sealed)
    patch.set(Ledger, "add_stored", stored)


MUTATIONS = [
    Mutation(61, "memory of a carrier as evidence", memory_of_a_carrier_as_evidence, rule=30, profile="shrink"),
    Mutation(62, "record of the carrier used", record_of_the_carrier_used, rule=30, profile="shrink"),
    Mutation(63, "half a replica goes on", half_a_replica_goes_on, rule=30, profile="shrink"),
    Mutation(64, "fewer nodes than copies need", fewer_nodes_than_copies_need, rule=30, profile="shrink"),
    Mutation(65, "twice: replicas at one home, not sent", replicas_at_one_home_not_sent, rule=30, profile="shrink"),
    Mutation(66, "spares not taken", spares_not_taken, rule=30, profile="shrink"),
    Mutation(67, "carried with other tensors", carried_by_a_rank_with_other_tensors, rule=30, profile="shrink"),
    Mutation(68, "copies of the carrier count", copies_of_the_carrier_count_for_all, rule=30, profile="shrink"),
]
