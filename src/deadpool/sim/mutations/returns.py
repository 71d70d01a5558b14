"""Broken rules of nodes that were taken for lost and come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from deadpool.protocol.coordinator import Coordinator
from deadpool.protocol.members import Member
from deadpool.protocol.messages import Prompts
from deadpool.protocol.stock import NodeView, Stock
from deadpool.sim.mutations.mutation import Mutation, Patch


def memory_without_a_seat_counts(patch: Patch) -> None:
    """What a node without a seat has in memory is planned with."""
    real = Stock.count

    def count(self: Stock, node: NodeView, *, stays: bool) -> None:
        real(self, node, stays=stays)
        self._count_live(node.inventory.live, range(self._layout.world_size))

    patch.set(Stock, "count", count)


def old_prompts_believed(patch: Patch) -> None:
    """From whoever brings them, also if others hold the rank by now."""
    real = Coordinator._handle

    def handle(self: Coordinator, member: Member, message: Any, now: float) -> None:
        if isinstance(message, Prompts):
            member = replace(member, position=self.layout.position_of(message.rank))
        real(self, member, message, now)

    patch.set(Coordinator, "_handle", handle)


MUTATIONS = [
    Mutation("19 memory without a seat counts", memory_without_a_seat_counts, "returns"),
    Mutation("19 old prompts believed", old_prompts_believed, "returns"),
]
