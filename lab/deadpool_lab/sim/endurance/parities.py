"""What a light node keeps for its coding groups: which pieces have come, and which parities are whole."""

from __future__ import annotations

from functools import cache

from deadpool.protocol.coding import CodingGroup, NodeGroup
from deadpool.protocol.identity import Version
from deadpool.protocol.inventory_batches import DIGEST_BYTES, Copies, CopyBatch, Parity, SharedTraits
from deadpool.protocol.seal import Extent, Geometry
from deadpool.protocol.topology import Layout

GEOMETRY = Geometry(record_capacity=65536, unique_bytes=10_000_000_000, replica_bytes=0)
EXTENT = Extent(record_bytes=4000, unique_bytes=GEOMETRY.unique_bytes, replica_bytes=0)


@cache
def traits(version: Version) -> SharedTraits:
    return SharedTraits(version, EXTENT, GEOMETRY, True, ())


def batches(ranks_by_version: dict[Version, tuple[int, ...]]) -> Copies:
    """Copies whose digests are all zero: nobody reads them."""
    found = [
        CopyBatch(traits(version), ranks, bytes(DIGEST_BYTES * len(ranks)))
        for version, ranks in ranks_by_version.items()
        if ranks
    ]
    return Copies(tuple(found))


class Parities:
    """Rule 27, parity counts when it is whole: the pieces of all other members are in it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._parts: dict[tuple[CodingGroup, int, Version], set[int]] = {}  # by group, member: ranks that have come

    def fold(self, group: NodeGroup, own: int, rank: int, version: Version) -> tuple[int, ...]:
        """Takes the pieces of `rank` for the parity that the node of rank `own` keeps. Returns the ranks that are in it
        if it is whole now, and was not before."""
        coded = group.of(own, self._layout)
        others = tuple(other for other in coded.ranks if other != own)
        parts = self._parts.setdefault((coded, coded.member_of(own), version), set())
        was_whole = len(parts) == len(others)
        parts.add(rank)
        return others if len(parts) == len(others) and not was_whole else ()

    def complete(self, group: NodeGroup, ranks: tuple[int, ...], version: Version) -> list[tuple[int, ...]]:
        """Every member has sent the pieces of this version, and the parities of older ones are overwritten. Returns the
        ranks in each."""
        self._parts.clear()
        for own in ranks:
            coded = group.of(own, self._layout)
            self._parts[coded, coded.member_of(own), version] = set(coded.ranks) - {own}
        return [tuple(sorted(parts)) for parts in self._parts.values()]

    def drop_above(self, number: int) -> None:
        self._parts = {key: parts for key, parts in self._parts.items() if key[2].number <= number}

    def listed(self) -> tuple[Parity, ...]:
        """Lists the parities that are whole, for an inventory."""
        return tuple(
            Parity(
                group=group,
                member=member,
                version=version,
                digest=0,
                copies=batches({version: tuple(rank for rank in group.ranks if rank in parts)}),
            )
            for (group, member, version), parts in self._parts.items()
            if len(parts) == group.size - 1
        )
