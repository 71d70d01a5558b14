"""Within which bounds a job may change its own protection, and how fast. Values only."""

from __future__ import annotations

from deadpool.protocol.coding import Scheme
from deadpool.protocol.structs import Value

CHANGES = 6
"""The number of changes that may come within as many dwell times: six in an hour with a dwell time of ten minutes."""


class AdaptiveBounds(Value, frozen=True, kw_only=True):
    """What the user asks for at least is what the job has anyway (`Layout.holders`, the capture interval)."""

    copies_at_most: int = 0  # on other nodes, of any rank; 0: as many as the user asks for at least
    every_at_most: int = 0  # steps from one snapshot to the next while nothing looks ill; 0: the least that costs allow
    memory_share: float = 0.5  # of a node's memory that copies may take
    coded: Scheme | None = None  # how snapshots may be coded where whole copies take more; None: they stay whole
    evict_ill: bool = False
    dwell_s: float = 600.0  # that a change stays at least; also the window over which signs are counted

    @property
    def changes_within_s(self) -> float:
        return CHANGES * self.dwell_s
