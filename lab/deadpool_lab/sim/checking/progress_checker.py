"""A job that ends because it makes no progress: not for want of a copy that is there.

It belongs to checker (g). In the safety phase sources may be out of reach whenever they are asked, so only what happens
after faults have ended counts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from deadpool.protocol.causes import FaultKind
from deadpool_lab.sim.checking.holdings import Holdings
from deadpool_lab.sim.checking.violation import fail

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World

SETTLES_S = 5.0
"""A fetch that began before faults ended has failed by then."""
ATTEMPTS = 2
"""One may find a copy damaged. The next one knows of it."""


class ProgressChecker:
    def __init__(self, world: World) -> None:
        self._world, self._holdings = world, Holdings(world)
        self._unread: Counter[int] = Counter()  # by rank: fetches that failed since a version was protected

    def on_event(self, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "fault" if self._world.clock.now > self._world.options.calm_s + SETTLES_S:
                self._unread.update(detail["ranks"] if detail["kind"] == FaultKind.UNREAD.value else ())
            case "protected":
                self._unread.clear()
            case "no_progress":
                for rank in [rank for rank, count in self._unread.items() if count >= ATTEMPTS]:
                    self._check_lost(rank)

    def _check_lost(self, rank: int) -> None:
        watermark = self._world.coordinator.commits.permit.watermark
        if watermark is None or self._world.options.replicated:
            return
        if where := self._holdings.where_intact(rank, watermark):
            fail("g", f"the job ends, since no source gave rank {rank} its snapshot; {watermark} of it is {where}")
