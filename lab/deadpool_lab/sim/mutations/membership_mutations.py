"""Mutations of the rules about who is a member: nodes that leave on purpose and come back, machines that serve several
jobs, and rule 30, carried ranks.

Two more were tried, and no checker objects, since they cost only one more recovery or a copy less: a node that leaves
before its copies lie elsewhere, and a plan that counts on its memory. The transcript drain.txt shows both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from deadpool.protocol.agent.copies.slots import Slots
from deadpool.protocol.agent.trainers.trainers import NodeTrainers
from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.leaving.drain import DrainAction, Drains, DrainStage
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.recovery.inventory_index import InventoryIndex, NodeView, VersionIndex
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.features.leases.agent.shared_machine import MachineLease
from deadpool.protocol.features.shrink.coordinator import carriers as shrink
from deadpool.protocol.features.shrink.coordinator import vacancies
from deadpool.protocol.features.shrink.coordinator.growth import Growth
from deadpool.protocol.identity import Layout, Version
from deadpool.protocol.messages import Copy, Live, Plan, Recording, Restore, Shares
from deadpool.protocol.schemes import Scheme
from deadpool_lab.sim.mutations.mutation import Mutation, Patch
from deadpool_lab.sim.process.seating import Seating

Advance = Callable[[Drains, float], DrainAction | None]


def _instead_of_advancing(patch: Patch, shortcut: Callable[[Drains], DrainAction | None]) -> None:
    real: Advance = Drains.advance

    def advance(self: Drains, now: float) -> DrainAction | None:
        return real(self, now) or shortcut(self)

    patch.set(Drains, "advance", advance)


def handover_before_every_rank_has_sealed(patch: Patch) -> None:
    def shortcut(self: Drains) -> DrainAction | None:
        drain = self.current
        stand = drain is not None and len(drain.standing) == self._job.layout.world_size
        return DrainAction.HAND_OVER if stand and drain and drain.stage is DrainStage.STOPPING else None

    _instead_of_advancing(patch, shortcut)


def handover_wherever_ranks_stand(patch: Patch) -> None:
    def on_standing(self: Drains, rank: int, number: int) -> None:
        if self.current is not None and self.current.stage is DrainStage.STOPPING:
            self.current.standing.add(rank)
            self.current.sealed.add(rank)

    patch.set(Drains, "on_standing", on_standing)


def seats_given_up_without_a_majority(patch: Patch) -> None:
    patch.set(Drains, "_keep_needed_seat", lambda self, drain: None)


def memory_of_a_node_without_a_seat_counts(patch: Patch) -> None:
    real = InventoryIndex.count

    def count(self: InventoryIndex, node: NodeView, *, stays: bool) -> None:
        lives = tuple(node.inventory.live)
        position = self._layout.position_of(lives[0].rank) if lives and node.position is None else node.position
        real(self, dataclasses.replace(node, position=position), stays=True)

    patch.set(InventoryIndex, "count", count)


def recordings_of_a_returned_node_counted(patch: Patch) -> None:
    real = Rehearsals.on_recording

    def gullible(self: Rehearsals, member: Member, recording: Recording) -> None:
        real(self, dataclasses.replace(member, position=self._job.layout.position_of(recording.rank)), recording)

    patch.set(Rehearsals, "on_recording", gullible)


def plan_taken_before_the_lease(patch: Patch) -> None:
    real = MachineLease.permits

    def permits(self: MachineLease, plan: Plan) -> bool:
        real(self, plan)
        return True

    patch.set(MachineLease, "permits", permits)


LEAVING_MUTATIONS = [
    Mutation(
        33,
        "handover before every rank has sealed",
        handover_before_every_rank_has_sealed,
        rule=21,
        profile="departures",
    ),
    Mutation(34, "handover wherever ranks stand", handover_wherever_ranks_stand, rule=21, profile="departures"),
    Mutation(23, "seats given up without a majority", seats_given_up_without_a_majority, rule=18, profile="departures"),
    Mutation(
        32, "memory of a node without a seat counts", memory_of_a_node_without_a_seat_counts, rule=19, profile="returns"
    ),
    Mutation(
        38, "recordings of a returned node counted", recordings_of_a_returned_node_counted, rule=23, profile="returns"
    ),
    Mutation(47, "plan taken before the lease", plan_taken_before_the_lease, rule=31, profile="leases"),
]


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


SHRINK_MUTATIONS = [
    Mutation(61, "memory of a carrier as evidence", memory_of_a_carrier_as_evidence, rule=30, profile="shrink"),
    Mutation(62, "record of the carrier used", record_of_the_carrier_used, rule=30, profile="shrink"),
    Mutation(63, "half a replica goes on", half_a_replica_goes_on, rule=30, profile="shrink"),
    Mutation(64, "fewer nodes than copies need", fewer_nodes_than_copies_need, rule=30, profile="shrink"),
    Mutation(65, "twice: replicas at one home, not sent", replicas_at_one_home_not_sent, rule=30, profile="shrink"),
    Mutation(66, "spares not taken", spares_not_taken, rule=30, profile="shrink"),
    Mutation(67, "carried with other tensors", carried_by_a_rank_with_other_tensors, rule=30, profile="shrink"),
    Mutation(68, "copies of the carrier count", copies_of_the_carrier_count_for_all, rule=30, profile="shrink"),
]
