"""Broken rules of nodes that leave on purpose and of nodes that come back.

Two more were tried and go unnoticed, since what follows is one more recovery or a copy less: a node that leaves before
its copies lie elsewhere, and its memory counted on by the plan. The transcript drain.txt shows both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from deadpool.protocol.coordinator.core import Coordinator
from deadpool.protocol.coordinator.drain import Departures, Next, Stage
from deadpool.protocol.coordinator.fencing import Fencing
from deadpool.protocol.coordinator.inventory_index import InventoryIndex, NodeView
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.messages import Recording
from deadpool.sim.mutations.mutation import Mutation, Patch

Look = Callable[[Departures, Mapping[str, Member], float], Next | None]


def _instead_of_looking(patch: Patch, shortcut: Callable[[Departures], Next | None]) -> None:
    real: Look = Departures.look

    def look(self: Departures, members: Mapping[str, Member], now: float) -> Next | None:
        return real(self, members, now) or shortcut(self)

    patch.set(Departures, "look", look)


def handed_over_before_everybody_has_sealed(patch: Patch) -> None:
    def shortcut(self: Departures) -> Next | None:
        stand = self.drain is not None and len(self.drain.standing) == self._layout.world_size
        return Next.HAND_OVER if stand and self.drain and self.drain.stage is Stage.STOPPING else None

    _instead_of_looking(patch, shortcut)


def handed_over_wherever_ranks_stand(patch: Patch) -> None:
    def stands(self: Departures, rank: int, number: int) -> None:
        if self.drain is not None and self.drain.stage is Stage.STOPPING:
            self.drain.standing.add(rank)
            self.drain.sealed.add(rank)

    patch.set(Departures, "stands", stands)


def seats_given_up_without_a_majority(patch: Patch) -> None:
    patch.set(Fencing, "_keep_who_is_needed", lambda self: None)


def memory_of_a_node_without_a_seat_counts(patch: Patch) -> None:
    real = InventoryIndex.count

    def count(self: InventoryIndex, node: NodeView, *, stays: bool) -> None:
        lives = tuple(node.inventory.live)
        position = self._layout.position_of(lives[0].rank) if lives and node.position is None else node.position
        real(self, replace(node, position=position), stays=True)

    patch.set(InventoryIndex, "count", count)


def old_recordings_believed(patch: Patch) -> None:
    real = Coordinator._handle

    def gullible(self: Coordinator, member: Member, message: object, now: float) -> None:
        if isinstance(message, Recording):
            member = replace(member, position=self.layout.position_of(message.rank))
        real(self, member, message, now)

    patch.set(Coordinator, "_handle", gullible)


MUTATIONS = [
    Mutation("21 handed over before everybody has sealed", handed_over_before_everybody_has_sealed, "departures"),
    Mutation("21 handed over wherever ranks stand", handed_over_wherever_ranks_stand, "departures"),
    Mutation("18 seats given up without a majority", seats_given_up_without_a_majority, "departures"),
    Mutation("19 memory of a node without a seat counts", memory_of_a_node_without_a_seat_counts, "returns"),
    Mutation("19 old recordings believed", old_recordings_believed, "returns"),
]
