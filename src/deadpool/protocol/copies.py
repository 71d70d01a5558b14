"""Copies and who has them. `Shelf` is one node's slots for one rank, `Ledger` is the coordinator's book of all copies.

Shelf invariants: a slot has one owner at a time (FREE, a writer, or the sealed copy), it returns to FREE only when its
writer has ended and no reader is left, and a sealed copy leaves only by a permit or by a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from deadpool.protocol.identity import Version
from deadpool.protocol.lots import Lot
from deadpool.protocol.messages import Copy, Permit, SlotRef
from deadpool.protocol.placement import Placement
from deadpool.protocol.seal import Geometry, replica_of
from deadpool.protocol.topology import Layout


class SlotState(Enum):
    FREE = auto()
    GRANTED = auto()  # the trainer writes, or may begin to
    HASHING = auto()  # the trainer is done, the agent reads it to seal it
    ARRIVING = auto()  # a stream from another node writes
    SEALED = auto()


@dataclass(slots=True)
class Slot:
    ref: SlotRef
    geometry: Geometry
    state: SlotState = SlotState.FREE
    copy: Copy | None = None
    readers: int = 0
    doomed: bool = False  # to be freed as soon as its last reader is done


def may_overwrite(version: Version, permit: Permit) -> bool:
    """Rule 5. Below `keep_from` alone would not do: the watermark itself lies there."""
    return version != permit.watermark and version.number < permit.keep_from


@dataclass(slots=True)
class Shelf:
    """One node's slots for one rank, its own or another node's. Slots of an outgrown geometry drain away."""

    rank: int
    slots: dict[SlotRef, Slot] = field(default_factory=dict)

    def add(self, segment: int, geometry: Geometry, count: int) -> None:
        for index in range(count):
            ref = SlotRef(segment=segment, index=index)
            self.slots[ref] = Slot(ref, geometry)

    def take(self, geometry: Geometry, state: SlotState) -> Slot | None:
        for slot in self.slots.values():
            if slot.state is SlotState.FREE and slot.geometry == geometry:
                slot.state = state
                return slot
        return None

    def has_room_for(self, geometry: Geometry) -> bool:
        """Whether any slot, free or not, is of this geometry: else a segment has to be made."""
        return any(slot.geometry == geometry for slot in self.slots.values())

    def sealed(self) -> Iterator[Slot]:
        return (slot for slot in self.slots.values() if slot.state is SlotState.SEALED and not slot.doomed)

    def find(self, version: Version) -> Slot | None:
        return next((slot for slot in self.sealed() if slot.copy and slot.copy.seal.version == version), None)

    def seal(self, ref: SlotRef, copy: Copy) -> None:
        slot = self.slots[ref]
        assert slot.state in (SlotState.HASHING, SlotState.ARRIVING), slot
        slot.state, slot.copy = SlotState.SEALED, copy

    def free(self, slot: Slot) -> None:
        """A sealed slot that is being read is freed when its last reader is done."""
        if slot.readers:
            slot.doomed = True
            return
        slot.state, slot.copy, slot.doomed = SlotState.FREE, None, False

    def done_reading(self, ref: SlotRef) -> None:
        slot = self.slots.get(ref)
        if slot is None:
            return
        slot.readers -= 1
        if slot.doomed and not slot.readers:
            self.free(slot)

    def end_reading(self) -> None:
        """Every reader is known to have ended."""
        for slot in self.slots.values():
            slot.readers = 0
            if slot.doomed:
                self.free(slot)

    def free_all_in(self, *states: SlotState) -> None:
        """The writers of these slots have ended."""
        for slot in self.slots.values():
            if slot.state in states:
                self.free(slot)

    def obey(self, permit: Permit) -> None:
        for slot in list(self.sealed()):
            if slot.copy and may_overwrite(slot.copy.seal.version, permit):
                self.free(slot)

    def drop_above(self, resume: Version) -> None:
        """Rule 14. Also another birth of the resume number: it belongs to a history that did not happen."""
        for slot in list(self.sealed()):
            version = slot.copy.seal.version if slot.copy else resume
            if version.number > resume.number or (version.number == resume.number and version != resume):
                self.free(slot)

    def give_back(self, geometry: Geometry) -> None:
        """The trainer will not write into slots of any other geometry."""
        for slot in self.slots.values():
            if slot.state is SlotState.GRANTED and slot.geometry != geometry:
                self.free(slot)

    def outgrown(self, geometry: Geometry) -> Iterator[int]:
        """Segments of any other geometry whose slots are all free; they are forgotten here."""
        for segment in sorted({ref.segment for ref in self.slots}):
            slots = [slot for ref, slot in self.slots.items() if ref.segment == segment]
            if all(slot.state is SlotState.FREE and slot.geometry != geometry for slot in slots):
                for slot in slots:
                    del self.slots[slot.ref]
                yield segment


AT_HOME = None


@dataclass(slots=True)
class Ledger:
    """Who has which version in this generation: (rank, None) for a seal at home, (rank, node) for a copy at a holder.

    `nodes` is the node at each position. A version is complete when no place lacks it, so a count suffices.
    """

    layout: Layout
    nodes: tuple[str, ...]
    placement: Placement
    places: dict[Version, set[tuple[int, str | None]]] = field(default_factory=dict)
    missed: set[int] = field(default_factory=set)
    replicas: dict[Version, dict[int, Copy]] = field(default_factory=dict)  # by rank: those that count on peers

    def _is_holder_of(self, rank: int, node: str) -> bool:
        return any(self.nodes[p] == node for p in self.placement.of(self.layout.position_of(rank)))

    def add_sealed(self, copy: Copy) -> None:
        rank, version = copy.seal.rank, copy.seal.version
        self.places.setdefault(version, set()).add((rank, AT_HOME))
        if copy.peers and copy.seal.extent.replica_bytes:
            self.replicas.setdefault(version, {})[rank] = copy

    def add_sealed_lot(self, lot: Lot, seats: range) -> None:
        """Those of ranks in `seats`."""
        if lot.has_replica:
            for copy in lot:
                if copy.seal.rank in seats:
                    self.add_sealed(copy)
        else:
            at_home = [(rank, AT_HOME) for rank in lot.ranks if rank in seats]
            self.places.setdefault(lot.version, set()).update(at_home)

    def add_stored_lot(self, lot: Lot, node: str) -> None:
        places, position, holds = self.places.setdefault(lot.version, set()), -1, False
        for rank in lot.ranks:
            if self.layout.position_of(rank) != position:
                position, holds = self.layout.position_of(rank), self._is_holder_of(rank, node)
            if holds:
                places.add((rank, node))

    def add_stored(self, rank: int, node: str, version: Version) -> None:
        if self._is_holder_of(rank, node):
            self.places.setdefault(version, set()).add((rank, node))

    def remove(self, rank: int, node: str, version: Version) -> None:
        at_home = self.nodes[self.layout.position_of(rank)] == node if self.nodes else False
        self.places.get(version, set()).discard((rank, AT_HOME if at_home else node))

    def complete(self, version: Version) -> bool:
        """Rule 6: sealed at home and stored at all holders, for every rank."""
        return len(self.places.get(version, ())) == self.layout.world_size * (1 + self.layout.holders)

    def lag(self, version: Version) -> int:
        """Copies that are still missing."""
        return self.layout.world_size * (1 + self.layout.holders) - len(self.places.get(version, ()))

    @property
    def newest(self) -> int:
        """The newest version that anything was heard of."""
        return max((*(version.number for version in self.places), *self.missed), default=0)

    def unmatched(self, version: Version) -> tuple[int, ...]:
        """Ranks whose replica region was not sent, because peers have it, and which no peer on another node has."""
        copies = self.replicas.get(version, {})
        return tuple(rank for rank in sorted(copies) if not self._has_twin(copies, rank))

    def _has_twin(self, copies: dict[int, Copy], rank: int) -> bool:
        home, wanted = self.layout.position_of(rank), replica_of(copies[rank].seal)
        elsewhere = (copies[peer] for peer in copies[rank].peers if peer in copies)
        return any(
            self.layout.position_of(twin.seal.rank) != home and replica_of(twin.seal) == wanted for twin in elsewhere
        )

    def obey(self, permit: Permit) -> None:
        """Versions that may be overwritten are no longer counted on."""
        self.places = {v: where for v, where in self.places.items() if not may_overwrite(v, permit)}
        self.replicas = {v: copies for v, copies in self.replicas.items() if v in self.places}
        self.missed = {number for number in self.missed if number >= permit.keep_from}
