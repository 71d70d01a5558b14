"""How the snapshot of a rank that no node has any more is decoded from what is left of its coding group.

A version may have been captured and coded twice, with other bytes in its record. Parities of both are there then, and
a decoder can use only those that were made of the same snapshots, together with these snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping

from deadpool.protocol.coordinator.recovery.inventory_index import NodeView, VersionIndex, source_at
from deadpool.protocol.features.coding.stripes import Stripes
from deadpool.protocol.messages import Block, Copy, JointCopy, Rebuild
from deadpool.protocol.schemes import RankGroup

Kept = tuple[NodeView, JointCopy]


def rebuild(index: VersionIndex, rank: int) -> tuple[Copy, Rebuild] | None:
    """The copy of the rank, as it was coded, and how it is decoded."""
    for group, parities in index.joint_copies_of(rank).items():
        for _, first in parities:
            coded, kept = _made_of_the_same(first, parities)
            if (how := _decode(index, group, rank, coded, kept)) is not None:
                return coded[rank], how
    return None


def _made_of_the_same(first: JointCopy, parities: list[Kept]) -> tuple[dict[int, Copy], dict[int, Kept]]:
    """What the snapshots were that `first` was made of, by rank; and by member the parities that agree with that."""
    coded = {copy.seal.rank: copy for copy in first.copies}
    kept: dict[int, Kept] = {}
    for node, parity in parities:
        copies = {copy.seal.rank: copy for copy in parity.copies}
        if parity.member not in kept and all(_is_coded_alike(coded.get(rank, c), c) for rank, c in copies.items()):
            kept[parity.member] = (node, parity)
            coded = {**copies, **coded}
    return coded, kept


def _decode(
    index: VersionIndex, group: RankGroup, rank: int, coded: Mapping[int, Copy], kept: Mapping[int, Kept]
) -> Rebuild | None:
    """None: too few blocks are left."""
    member = group.member_of(rank)
    homes = {other: _home_of(index, group.ranks[other], coded) for other in group.others(member)}
    there = {other: node for other, node in homes.items() if node is not None}
    if not Stripes(group).can_rebuild(member, there, kept):
        return None
    data = [
        Block(
            member=other,
            source=source_at(node, group.ranks[other], "record", "unique"),
            copy=coded.get(group.ranks[other]),
        )
        for other, node in there.items()
    ]
    parity = [Block(member=m, source=source_at(node, p.keeper, "parity")) for m, (node, p) in kept.items()]
    return Rebuild(group=group, member=member, data=tuple(data), joint=tuple(parity))


def _home_of(index: VersionIndex, rank: int, coded: Mapping[int, Copy]) -> NodeView | None:
    """A node with the snapshot of this rank that was coded."""
    homes = [(node, batch.copy(rank)) for node, batch in (*index.own_homes(rank), *index.held_of(rank))]
    return next((node for node, copy in homes if _has_same_bytes(coded.get(rank, copy), copy)), None)


def _is_coded_alike(one: Copy, other: Copy) -> bool:
    return one.seal == other.seal and one.geometry == other.geometry


def _has_same_bytes(one: Copy, other: Copy) -> bool:
    """The replica region may not have been sent."""
    return (one.seal.extent, one.seal.digest) == (other.seal.extent, other.seal.digest)
