"""Ways to protect snapshots beside whole copies on other nodes: in groups. Here there is none; a feature brings one.

Who is in a group stands in a plan, and what members keep for the others stands in inventories as joint copies, so that
the cores understand both without the feature. What follows from them is decided behind this seam, and in the placement
that it makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deadpool.protocol.coordinator.recovery.placement import Placement, Rack
from deadpool.protocol.messages import Copy, Rebuild
from deadpool.protocol.schemes import Scheme

if TYPE_CHECKING:
    from deadpool.protocol.coordinator.recovery.inventory_index import VersionIndex


class Redundancy:
    def refusal(self, scheme: Scheme, *, is_full: bool = True) -> str | None:
        """Why ranks cannot be protected in groups by this scheme; None: they can. `is_full`: every position has a node
        of its own."""
        return f"{scheme} needs coded memory, which is not installed: give copies=N"

    def place(self, racks: Sequence[Rack], scheme: Scheme, before: Placement, extra: frozenset[int]) -> Placement:
        """Places what protects ranks by a scheme of groups."""
        raise AssertionError(self.refusal(scheme))

    def taken_over(self, found: Placement) -> Placement:
        """Returns the placement that nodes have told a new coordinator of, whose groups are known."""
        return found

    def rebuild(self, index: VersionIndex, rank: int) -> tuple[Copy, Rebuild] | None:
        """The rank's copy, and how it follows from what other members of its group have; None: it does not."""
        return None


COPIES_ONLY = Redundancy()
