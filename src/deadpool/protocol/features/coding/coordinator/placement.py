"""Where parity lies: a position is held by all other members of its group; which positions form groups is in
`groups.py`. What counts as a copy there, and which way of protecting this is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deadpool.protocol.coordinator.protection.redundancy import Redundancy
from deadpool.protocol.coordinator.recovery.inventory_index import VersionIndex
from deadpool.protocol.coordinator.recovery.placement import Placement, Rack
from deadpool.protocol.features.coding.coordinator.groups import form_groups
from deadpool.protocol.features.coding.coordinator.rebuilds import rebuild
from deadpool.protocol.identity import Layout
from deadpool.protocol.inventory_batches import JointCopy
from deadpool.protocol.messages import Copy, Rebuild
from deadpool.protocol.schemes import NodeGroup, Scheme


@dataclass(frozen=True, kw_only=True)
class CodedPlacement(Placement):
    """Every position is in a group."""

    def _group(self, position: int) -> NodeGroup:
        group = self.group_of(position)
        assert group is not None, f"position {position} is in no group"
        return group

    @property
    def losses(self) -> int:
        return self.scheme.parities

    def _is_lost_with_its_rack(self, position: int, holders: Sequence[int]) -> bool:
        return self._count(self.racks[position], holders) >= self._group(position).parities

    def would_move(self, position: int, rack: Rack) -> int:
        """None moves: fewer members of one rack are better."""
        return self._count(rack, self.of(position))

    @property
    def counts_copies(self) -> bool:
        """A whole copy from before snapshots were coded is no parity."""
        return False

    def covers(self, joint: JointCopy, layout: Layout) -> bool:
        """A parity counts if its group is still the one that the ranks are coded in."""
        return self._group(layout.position_of(joint.keeper)).of(joint.keeper, layout) == joint.group

    def is_stored(self, index: VersionIndex, node: str, holder: int, ranks: range, layout: Layout) -> bool:
        """The pieces of these ranks are in the node's parities."""
        group = self._group(holder)
        member = group.positions.index(holder)
        return all(index.has_joint(node, (group.of(rank, layout), member)) for rank in ranks)


class CodedRedundancy(Redundancy):
    def refusal(self, scheme: Scheme, *, is_full: bool = True) -> str | None:
        if is_full:
            return None
        return "some ranks are carried by others, which needs whole copies: wait until the job has grown again"

    def place(self, racks: Sequence[Rack], scheme: Scheme, before: Placement, extra: frozenset[int]) -> Placement:
        if (before.racks, before.scheme, before.extra) == (tuple(racks), scheme, extra):
            return before
        groups = form_groups(racks, scheme, before.groups if before.scheme == scheme else ())
        others = {p: tuple(q for q in group.positions if q != p) for group in groups for p in group.positions}
        holders = tuple(others[position] for position in range(len(racks)))
        return CodedPlacement(racks=tuple(racks), holders=holders, scheme=scheme, extra=extra, groups=groups)

    def taken_over(self, found: Placement) -> Placement:
        """Groups have no holders of one rank, and so none has one more."""
        return CodedPlacement(
            racks=found.racks, holders=found.holders, scheme=found.scheme, extra=frozenset(), groups=found.groups
        )

    def rebuild(self, index: VersionIndex, rank: int) -> tuple[Copy, Rebuild] | None:
        return rebuild(index, rank)
