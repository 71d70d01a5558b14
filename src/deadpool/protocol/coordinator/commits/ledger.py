"""Which nodes have which copies, as far as the coordinator knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deadpool.protocol.coordinator.recovery.placement import Placement
from deadpool.protocol.identity import Layout, Version
from deadpool.protocol.inventory_batches import CopyBatch, JointCopy
from deadpool.protocol.messages import Copy, Permit
from deadpool.protocol.permits import may_overwrite
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import replica_of

AT_HOME = None


@dataclass(slots=True)
class Ledger:
    """Where each version is in this generation: (rank, None) for a seal at home, (rank, node) for a copy at a holder.

    `nodes` is the node at each position. A version is complete when no place lacks it, so a count suffices.
    """

    layout: Layout
    nodes: tuple[str, ...]
    placement: Placement
    places: dict[Version, set[tuple[int, str | None]]] = field(default_factory=dict)
    missed: set[int] = field(default_factory=set)
    replicas: dict[Version, dict[int, Copy]] = field(default_factory=dict)  # by rank, at home; others may count on them
    _wanted: int = field(init=False)  # places of a version that is complete: counted once, not at every copy

    def __post_init__(self) -> None:
        self._wanted = self.placement.count(self.layout)

    def _is_holder_of(self, rank: int, node: str) -> bool:
        """Tells whether the node holds copies of the rank, or joint copies."""
        return any(self.nodes[p] == node for p in self.placement.of(self.layout.position_of(rank)))

    def add_sealed(self, copy: Copy) -> None:
        rank, version = copy.seal.rank, copy.seal.version
        self.places.setdefault(version, set()).add((rank, AT_HOME))
        if copy.seal.extent.replica_bytes:
            self.replicas.setdefault(version, {})[rank] = copy

    def add_sealed_batch(self, batch: CopyBatch, seats: Sequence[int]) -> None:
        """Counts the copies of ranks in `seats`."""
        if batch.has_replica:
            for copy in batch:
                if copy.seal.rank in seats:
                    self.add_sealed(copy)
        else:
            at_home = [(rank, AT_HOME) for rank in batch.ranks if rank in seats]
            self.places.setdefault(batch.version, set()).update(at_home)

    def add_stored_batch(self, batch: CopyBatch, node: str) -> None:
        if not self.placement.counts_copies:
            return
        places, position, holds = self.places.setdefault(batch.version, set()), -1, False
        for rank in batch.ranks:
            if self.layout.position_of(rank) != position:
                position, holds = self.layout.position_of(rank), self._is_holder_of(rank, node)
            if holds:
                places.add((rank, node))

    def add_stored(self, rank: int, node: str, version: Version) -> None:
        if self.placement.counts_copies and self._is_holder_of(rank, node):
            self.places.setdefault(version, set()).add((rank, node))

    def add_stored_together(self, ranks: Iterable[int], node: str, version: Version) -> None:
        """The node has a joint copy of these ranks."""
        places = self.places.setdefault(version, set())
        places.update((rank, node) for rank in ranks if self._is_holder_of(rank, node))

    def add_joint(self, joint: JointCopy, node: str) -> None:
        """Counts a joint copy of an inventory, if the placement still asks for it."""
        if self.placement.covers(joint, self.layout) and self.nodes[self.layout.position_of(joint.keeper)] == node:
            self.add_stored_together(joint.ranks, node, joint.version)

    def has_group(self, group: RankGroup, rank: int) -> bool:
        """Whether the placement still has this group."""
        nodes = self.placement.group_of(self.layout.position_of(rank))
        return nodes is not None and nodes.of(rank, self.layout) == group

    def remove_joint(self, keeper: int, node: str, version: Version) -> None:
        """What this node keeps for the group of its rank."""
        place, position = self.layout.local_rank(keeper), self.layout.position_of(keeper)
        lost = {(self.layout.ranks_at(p)[place], node) for p in self.placement.held_by(position)}
        self.places.get(version, set()).difference_update(lost)

    def remove(self, rank: int, node: str, version: Version) -> None:
        at_home = self.nodes[self.layout.position_of(rank)] == node if self.nodes else False
        self.places.get(version, set()).discard((rank, AT_HOME if at_home else node))

    def complete(self, version: Version) -> bool:
        """Rule 6, commit: sealed at home and stored at all holders, for every rank. In groups, stored means
        that a holder has a sealed joint copy of the rank (rule 27, parity counts when it is whole)."""
        return bool(self.nodes) and self.lag(version) == 0

    def lag(self, version: Version) -> int:
        """Copies that are still missing."""
        return self._wanted - len(self.places.get(version, ()))

    @property
    def newest(self) -> int:
        """The newest version of which any copy, or a miss, was reported."""
        return max((*(version.number for version in self.places), *self.missed), default=0)

    def unmatched(self, version: Version) -> tuple[int, ...]:
        """Ranks whose replica region was not sent, since peers have it, although no peer on another node does."""
        copies = self.replicas.get(version, {})
        counting = (rank for rank in sorted(copies) if copies[rank].peers)
        return tuple(rank for rank in counting if not self._has_replica(copies, rank))

    def _has_replica(self, copies: dict[int, Copy], rank: int) -> bool:
        """Peers come first, of which there may be one on every node. A copy that was fetched may not name all of them,
        and its digest tells which other copies have the same bytes."""
        home, wanted = self._home_of(rank), replica_of(copies[rank].seal)
        peers = (copies[peer] for peer in copies[rank].peers if peer in copies)
        return any(
            replica_of(copy.seal) == wanted and self._home_of(copy.seal.rank) != home
            for each in (peers, copies.values())
            for copy in each
        )

    @property
    def has_shared_homes(self) -> bool:
        """Rule 30, carried ranks: some node is the home of ranks of several positions."""
        return len(set(self.nodes)) < len(self.nodes)

    def _home_of(self, rank: int) -> str | int:
        """A node that carries ranks is the home of ranks of several positions."""
        position = self.layout.position_of(rank)
        return self.nodes[position] if position < len(self.nodes) else position

    def drop_overwritable(self, permit: Permit) -> None:
        """Versions that may be overwritten are no longer counted on."""
        self.places = {v: where for v, where in self.places.items() if not may_overwrite(v, permit)}
        self.replicas = {v: copies for v, copies in self.replicas.items() if v in self.places}
        self.missed = {number for number in self.missed if number >= permit.keep_from}
