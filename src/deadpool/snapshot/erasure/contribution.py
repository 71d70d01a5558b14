"""What one member of a group adds to the parity that another member keeps: its seal, and which of its pieces.

A parity keeps the contributions that it was made of: whoever rebuilds a lost member from it learns from them what the
members' snapshots are, and the digest of every piece.
"""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.protocol.coding import CodingGroup, Piece, Place, pieces_of
from deadpool.protocol.identity import Version
from deadpool.protocol.seal import Geometry, Seal
from deadpool.snapshot.arena.piece_digests import PieceDigests


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """`seal.full` tells whether the replica region is coded; `geometry` has room for what is coded only."""

    group: CodingGroup
    target: int  # the member that keeps the parity
    member: int  # the member that contributes
    seal: Seal
    geometry: Geometry
    digests: PieceDigests

    @property
    def version(self) -> Version:
        return self.seal.version

    def pieces(self) -> list[tuple[Place, Piece]]:
        """What is sent for it, in this order."""
        return self.group.pieces_for(self.member, self.target, self.geometry, self.seal.extent)

    def piece_at(self, place: Place) -> Piece | None:
        """None where the member has no bytes in that row, which then counts as zeros."""
        return piece_at(self.group, self.member, place, self.geometry, self.seal)

    def mismatch(self) -> str | None:
        """Says why the contribution cannot be one, if it cannot."""
        group = self.group
        if not (self.member < group.size and self.target < group.size and self.member != self.target):
            return f"member {self.member} cannot contribute to member {self.target} of {group.size}"
        if group.ranks[self.member] != self.seal.rank:
            return f"member {self.member} of the group is rank {group.ranks[self.member]}, not {self.seal.rank}"
        return self.digests.mismatch(self.seal)


def coded_geometry(geometry: Geometry, *, full: bool) -> Geometry:
    """The regions that are coded."""
    return geometry if full else geometry.without_replica()


def piece_at(group: CodingGroup, member: int, place: Place, geometry: Geometry, seal: Seal) -> Piece | None:
    stripes = group.data_stripes(member)
    if place.stripe not in stripes:
        return None
    number = place.row * group.data_blocks + stripes.index(place.stripe)
    pieces = pieces_of(geometry, seal.extent)
    return pieces[number] if number < len(pieces) and pieces[number].size else None
