"""Mutations of drains and leases.

Mutations of the rules of nodes that leave on purpose and of nodes that come back.

Two more were tried, and no checker objects, since they cost only one more recovery or a copy less: a node that
leaves before its copies lie elsewhere, and a plan that counts on its memory. The transcript drain.txt shows both.

`plan_taken_before_the_lease`: Mutations of the rule of machines that serve several jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from deadpool.protocol.coordinator.leaving.drain import DrainAction, Drains, DrainStage
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.recovery.inventory_index import InventoryIndex, NodeView
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.features.leases.agent.shared_machine import MachineLease
from deadpool.protocol.messages import Plan, Recording
from deadpool_lab.sim.mutations.mutation import Mutation, Patch

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
        real(self, replace(node, position=position), stays=True)

    patch.set(InventoryIndex, "count", count)


def recordings_of_a_returned_node_counted(patch: Patch) -> None:
    real = Rehearsals.on_recording

    def gullible(self: Rehearsals, member: Member, recording: Recording) -> None:
        real(self, replace(member, position=self._job.layout.position_of(recording.rank)), recording)

    patch.set(Rehearsals, "on_recording", gullible)


def plan_taken_before_the_lease(patch: Patch) -> None:
    real = MachineLease.permits

    def permits(self: MachineLease, plan: Plan) -> bool:
        real(self, plan)
        return True

    patch.set(MachineLease, "permits", permits)


MUTATIONS = [
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
