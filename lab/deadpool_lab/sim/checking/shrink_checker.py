"""Checker of rule 30 (carried ranks): which rank carries which, by the orders of nodes, and that the job grows again.

That a carried rank sees its data, each part once and in order, is checked where it stands and where it ends, as for
every rank: checkers (a), (b) and (h).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Plan
from deadpool_lab.sim.checking.violation import fail

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World

GROWS_IN_S = 150.0
"""The time in which a job with spares enough and without faults grows. An attempt that failed just before is repeated
after 60 s.
"""
LOOKS_EVERY_S = 5.0


class ShrinkChecker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._generation: Generation | None = None
        self._carrier: dict[int, int | None] = {}  # by rank, in that plan; None: it has a process
        self._node: dict[int, str] = {}  # by rank, in that plan
        self._deadline = 0.0

    @property
    def carried(self) -> dict[int, int]:
        """Ranks without a process in the newest plan, and the ranks that carry them."""
        return {rank: carrier for rank, carrier in self._carrier.items() if carrier is not None}

    @property
    def has_shard_at_one_home(self) -> bool:
        """Some node is the home of all ranks that hold the same tensors."""
        homes: dict[int | None, set[str]] = {}
        for rank, node in self._node.items() if self.carried else ():
            homes.setdefault(self._world.history.shard_of(rank), set()).add(node)
        return any(len(nodes) == 1 for nodes in homes.values())

    @property
    def carrying_nodes(self) -> set[str]:
        return {self._node[rank] for rank in self.carried}

    # --- plans --------------------------------------------------------------------------------------------------------

    def on_plan(self, node: str, plan: Plan) -> None:
        if plan.generation != self._generation:
            self._generation, self._carrier, self._node = plan.generation, {}, {}
        orders = {order.rank: order for order in plan.orders}
        for rank, order in orders.items():
            self._carrier[rank], self._node[rank] = order.carrier, node
            if order.carrier is None:
                continue
            if not self._world.may_shrink:
                fail("rule 30", f"{plan.generation} has no process for rank {rank}, and the user did not allow it")
            if order.carrier not in orders or orders[order.carrier].carrier is not None:
                fail("rule 30", f"rank {order.carrier} carries rank {rank} on {node}, and has no process there")
            if self._world.history.shard_of(rank) != self._world.history.shard_of(order.carrier):
                fail("rule 30", f"rank {order.carrier} carries rank {rank}, and holds other tensors")

    def on_go(self) -> None:
        """All nodes have been sent their parts, unless theirs were as before: then no rank is carried."""
        carried = self.carried
        if not carried:
            return
        world_size, shards = self._world.layout.world_size, self._world.options.shards
        if len(self._carrier) != world_size:
            fail("rule 30", f"{self._generation}: ranks {sorted(self._carrier)} of {world_size} have a seat")
        for first in range(0, world_size, shards):
            self._check_replica(range(first, first + shards), carried)
        nodes, holders = set(self._node.values()), self._world.layout.holders
        if len(nodes) <= holders:
            fail("rule 30", f"{self._generation} goes on with {sorted(nodes)}: {holders} copies of each need more")

    def _check_replica(self, ranks: range, carried: dict[int, int]) -> None:
        """Ranks that need each other within a share: all of them, or none, and carriers that need each other too."""
        missing = [rank for rank in ranks if rank in carried]
        by = {carried[rank] // len(ranks) for rank in missing}
        if missing and (len(missing) < len(ranks) or len(by) > 1):
            fail("rule 30", f"{self._generation}: of the replica of ranks {list(ranks)}, {missing} have no process")

    # --- liveness -----------------------------------------------------------------------------------------------------

    def expect_growth(self, grown: Callable[[], None]) -> None:
        """Called when faults have ended. `grown` is called once the job runs and no rank is carried."""
        self._deadline = self._world.clock.now + GROWS_IN_S
        self._look(grown)

    def _look(self, grown: Callable[[], None]) -> None:
        world = self._world
        if world.has_running_job and not self.carried:
            grown()
            return
        if world.has_running_job and world.clock.now > self._deadline:
            fail("rule 30", f"spares have been there for long, and ranks {sorted(self.carried)} are still carried")
        world.clock.after(LOOKS_EVERY_S, partial(self._look, grown))
