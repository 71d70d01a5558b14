"""One node's slots for one rank.

Invariants: a slot has one owner at a time (FREE, a writer, or the sealed copy), it returns to FREE only when its
writer has ended and no reader is left, and a sealed copy leaves only by a permit or by a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Copy, Permit, SlotRef
from deadpool.protocol.permits import may_overwrite
from deadpool.protocol.seal import Geometry


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
        """Rule 14, drop above the resume version. Also another birth of the resume number: it belongs to a history that
        did not happen."""
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
