"""One parity and what its members contribute.

`Contribution`: what one member of a group adds to the parity that another member keeps: its seal, and which of its
pieces.

A parity keeps the contributions that it was made of: whoever rebuilds a lost member from it learns from them what
the members' snapshots are, and the digest of every piece.

`ParitySlot`: one member's parity of one version: the slot that it lies in, who has contributed what, and its
digests.

Pieces of several members are added at the same time, by the threads that receive them. A piece is added at most
once, and only after its digest was checked: a contribution that breaks off leaves a correct sum of what has come,
and is continued by sending it again.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from deadpool.protocol.features.coding.stripes import ParityLayout, ParityRow, Place, Stripes
from deadpool.protocol.identity import Version
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Geometry, Piece, Seal, pieces_of
from deadpool.snapshot.arena.checksums import PieceDigests, checksum
from deadpool.snapshot.arena.slot import clear_seal
from deadpool.snapshot.erasure.galois import Coder, chosen_coder, clear, coefficient


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """`seal.full` tells whether the replica region is coded; `geometry` has room for what is coded only."""

    group: RankGroup
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
        return Stripes(self.group).pieces_for(self.member, self.target, self.geometry, self.seal.extent)

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


def piece_at(group: RankGroup, member: int, place: Place, geometry: Geometry, seal: Seal) -> Piece | None:
    coded = Stripes(group)
    stripes = coded.data_stripes(member)
    if place.stripe not in stripes:
        return None
    number = place.row * coded.data_blocks + stripes.index(place.stripe)
    pieces = pieces_of(geometry, seal.extent)
    return pieces[number] if number < len(pieces) and pieces[number].size else None


_LOCKS = 16  # each guards every sixteenth row: threads rarely meet, and a slot of many rows needs no lock for each


class ParitySlot:
    def __init__(self, *, layout: ParityLayout, version: Version, view: memoryview, coder: Coder | None = None) -> None:
        """`view` is a whole slot of layout.geometry. What was in it does not matter."""
        clear_seal(view)
        self.layout = layout
        self.version = version
        start = layout.geometry.offset("unique")
        self._rows = {row.place: view[start + row.offset : start + row.offset + row.size] for row in layout.rows}
        self._numbers = {row.place: number for number, row in enumerate(layout.rows)}
        self._begun = bytearray(len(layout.rows))
        self._coder = coder or chosen_coder()
        self._contributions: dict[int, Contribution] = {}
        self._pieces: dict[int, list[tuple[Place, Piece]]] = {}
        self._folded: dict[int, bytearray] = {}
        self._lock = threading.Lock()  # of the three above
        self._row_locks = [threading.Lock() for _ in range(_LOCKS)]
        self._digests: tuple[int, ...] | None = None

    # --- contributions

    def begin(self, contribution: Contribution) -> str | None:
        """Takes note of a contribution. Returns why it cannot be added, if it cannot; begun again, it goes on."""
        with self._lock:
            known = self._contributions.get(contribution.member)
            reason = self._objection(contribution, known)
            if reason is None and known is None:
                self._contributions[contribution.member] = contribution
                pieces = self._pieces[contribution.member] = contribution.pieces()
                self._folded[contribution.member] = bytearray(len(pieces))
            return reason

    def _objection(self, contribution: Contribution, known: Contribution | None) -> str | None:
        layout = self.layout
        if (contribution.group, contribution.target) != (layout.group, layout.member):
            return "the parity is of another group or member"
        if contribution.version != self.version:
            return f"the parity is of {self.version}, not of {contribution.version}"
        if known is not None:
            return None if known == contribution else f"another snapshot of rank {known.seal.rank} was added already"
        if self._digests is not None:
            return "the parity is sealed"
        for place, piece in contribution.pieces():
            if place not in layout.at or layout.at[place].size < piece.size:
                return f"the parity has no room for piece {piece.number} of rank {contribution.seal.rank}"
        return None

    def folded(self, member: int) -> bytes:
        """Which pieces of a contribution are in: a byte for each, in the order of Contribution.pieces()."""
        with self._lock:
            return bytes(self._folded[member])

    def fold(self, member: int, index: int, data: memoryview) -> None:
        """Adds a verified piece, or does nothing if it is in already."""
        place, piece = self._pieces[member][index]
        assert len(data) == piece.size
        parity = Stripes(self.layout.group).parity_members(place.stripe).index(self.layout.member)
        factor = coefficient(self.layout.group.parities, parity, member)
        with self._row_locks[self._numbers[place] % _LOCKS]:
            if self._folded[member][index]:
                return
            self._clear_once(place)
            self._coder.fold(self._rows[place], factor, data)
            self._folded[member][index] = 1

    def _clear_once(self, place: Place) -> None:
        """Row by row, just before the first piece is added: then the row is in the cache."""
        number = self._numbers[place]
        if not self._begun[number]:
            clear(self._rows[place])
            self._begun[number] = 1

    def has_all_of(self, member: int) -> bool:
        with self._lock:
            return member in self._folded and all(self._folded[member])

    @property
    def is_complete(self) -> bool:
        """Whether every other member of the group has contributed everything."""
        return all(self.has_all_of(member) for member in self.layout.group.others(self.layout.member))

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        """Returns the contributions in the order of members."""
        with self._lock:
            return tuple(self._contributions[member] for member in sorted(self._contributions))

    # --- once all have contributed

    def seal(self, pool: ThreadPoolExecutor | None = None) -> tuple[int, ...]:
        """Computes the digests of all rows. Nothing can be added any more, and other nodes may read."""
        assert self.is_complete, "a member has not contributed everything"
        for place in self._rows:
            with self._row_locks[self._numbers[place] % _LOCKS]:
                self._clear_once(place)  # rows in which no member has bytes this time
        rows = list(self._rows.values())
        digests = tuple(pool.map(checksum, rows) if pool else map(checksum, rows))
        with self._lock:
            self._digests = digests
        return digests

    @property
    def digests(self) -> tuple[int, ...] | None:
        """Returns the digests of all rows, in their order, or None as long as the parity is not sealed."""
        with self._lock:
            return self._digests

    def row(self, place: Place) -> ParityRow | None:
        return self.layout.at.get(place)

    def close(self) -> None:
        """Lets go of the slot's memory. No transfer may use it any more; the segment can be freed then."""
        self._rows.clear()
