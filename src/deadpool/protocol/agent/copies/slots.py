"""A node's slots and the memory they lie in: one `RankSlots` per rank and role, own or held.

Slots are allocated by the segment, and all slots of a segment have one geometry. When a rank's state has changed its
size, or its copies go to other nodes by now, a segment is released once nothing in it is needed.

Invariants: a slot has one owner at a time (FREE, a writer, or the sealed copy); it returns to FREE only when its writer
has ended and no reader is left; and a sealed copy leaves only by a permit or by a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from deadpool.protocol.effects import AgentEffect, Allocate, ReleaseSegment
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Copies, Copy, Inventory, JointCopy, Live, Lives, Permit, Plan, SlotRef
from deadpool.protocol.permits import may_overwrite
from deadpool.protocol.schemes import Keeper, RankGroup
from deadpool.protocol.seal import Geometry


class SlotState(Enum):
    FREE = auto()
    GRANTED = auto()  # the trainer writes, or may begin to
    HASHING = auto()  # the trainer is done, the agent reads the slot to seal it
    ARRIVING = auto()  # a stream from another node writes
    SEALED = auto()


@dataclass(slots=True)
class Slot:
    ref: SlotRef
    geometry: Geometry
    state: SlotState = SlotState.FREE
    copy: Copy | None = None
    readers: int = 0
    free_when_read: bool = False  # to be freed as soon as its last reader is done
    joint: JointCopy | None = None  # what it is, where it is no copy of one rank


@dataclass(slots=True)
class RankSlots:
    """One node's slots for one rank, its own or another node's. Slots of a former geometry are not refilled."""

    rank: int
    by_ref: dict[SlotRef, Slot] = field(default_factory=dict)

    def add(self, segment: int, geometry: Geometry, count: int) -> None:
        for index in range(count):
            ref = SlotRef(segment=segment, index=index)
            self.by_ref[ref] = Slot(ref, geometry)

    def take(self, geometry: Geometry, state: SlotState) -> Slot | None:
        for slot in self.by_ref.values():
            if slot.state is SlotState.FREE and slot.geometry == geometry:
                slot.state = state
                return slot
        return None

    def has_geometry(self, geometry: Geometry) -> bool:
        """Whether any slot, free or not, has this geometry: else a segment has to be allocated."""
        return any(slot.geometry == geometry for slot in self.by_ref.values())

    def sealed(self) -> Iterator[Slot]:
        return (slot for slot in self.by_ref.values() if slot.state is SlotState.SEALED and not slot.free_when_read)

    def find(self, version: Version) -> Slot | None:
        return next((slot for slot in self.sealed() if slot.copy and slot.copy.seal.version == version), None)

    def is_empty(self) -> bool:
        return all(slot.state is SlotState.FREE for slot in self.by_ref.values())

    def seal(self, ref: SlotRef, copy: Copy) -> None:
        slot = self.by_ref[ref]
        assert slot.state in (SlotState.HASHING, SlotState.ARRIVING), slot
        slot.state, slot.copy = SlotState.SEALED, copy

    def free(self, slot: Slot) -> None:
        """A slot that is being read is freed when its last reader is done."""
        if slot.readers:
            slot.free_when_read = True
            return
        slot.state, slot.copy, slot.free_when_read, slot.joint = SlotState.FREE, None, False, None

    def end_reading(self, ref: SlotRef) -> None:
        slot = self.by_ref.get(ref)
        if slot is None:
            return
        slot.readers -= 1
        if slot.free_when_read and not slot.readers:
            self.free(slot)

    def end_all_reading(self) -> None:
        """The streams were cut, so no reader is left."""
        for slot in self.by_ref.values():
            slot.readers = 0
            if slot.free_when_read:
                self.free(slot)

    def free_all_in(self, *states: SlotState) -> None:
        """The writers of these slots have ended."""
        for slot in self.by_ref.values():
            if slot.state in states:
                self.free(slot)

    def apply_permit(self, permit: Permit) -> None:
        for slot in list(self.sealed()):
            if slot.copy and may_overwrite(slot.copy.seal.version, permit):
                self.free(slot)

    def drop_above(self, resume: Version) -> None:
        """Rule 14 (drop above the resume version). A version of the same number from another generation goes
        too: the job rolled back behind it."""
        for slot in list(self.sealed()):
            version = slot.copy.seal.version if slot.copy else resume
            if version.number > resume.number or (version.number == resume.number and version != resume):
                self.free(slot)

    def withdraw_grants(self, geometry: Geometry) -> None:
        """The trainer declared this geometry and will not write into slots of any other."""
        for slot in self.by_ref.values():
            if slot.state is SlotState.GRANTED and slot.geometry != geometry:
                self.free(slot)

    def remove_outgrown(self, geometry: Geometry) -> Iterator[int]:
        """Removes segments of any other geometry whose slots are all free, and yields their numbers."""
        for segment in sorted({ref.segment for ref in self.by_ref}):
            slots = [slot for ref, slot in self.by_ref.items() if ref.segment == segment]
            if all(slot.state is SlotState.FREE and slot.geometry != geometry for slot in slots):
                for slot in slots:
                    del self.by_ref[slot.ref]
                yield segment


class Slots:
    def __init__(self, out: list[AgentEffect]) -> None:
        self._out = out
        self.slots_per_segment = 0
        self.permit: Permit | None = None
        self.own: dict[int, RankSlots] = {}
        self.held: dict[int, RankSlots] = {}
        self.joint: dict[Keeper, RankSlots] = {}  # by group, and the member that this node is in it
        self.geometry: dict[int, Geometry] = {}  # of each own rank's state, as last declared or fetched
        self.peers: dict[int, tuple[int, ...]] = {}  # own rank -> ranks with the same replica region
        self.held_geometry: dict[int, Geometry] = {}  # of the latest offer
        self._seated: frozenset[int] = frozenset()  # ranks whose home this node is
        self.joint_geometry: dict[Keeper, Geometry] = {}  # that the latest offer needs
        self._keeps: set[Keeper] = set()  # joint copies that the placement keeps here
        self._holds: frozenset[int] = frozenset()  # ranks whose copies the placement sends here
        self._segments = 0
        self._by_segment: dict[int, RankSlots] = {}
        self._allocating: dict[int, tuple[RankSlots, Geometry]] = {}

    # --- what is there -----------------------------------------------------------------------------------------------

    def all(self) -> Iterator[RankSlots]:
        yield from self.own.values()
        yield from self.held.values()
        yield from self.joint.values()

    def of(self, rank: int) -> list[RankSlots]:
        """The rank's own slots come before the held ones."""
        return [by_rank[rank] for by_rank in (self.own, self.held) if rank in by_rank]

    def own_of(self, rank: int) -> RankSlots:
        return self.own.setdefault(rank, RankSlots(rank))

    def held_of(self, rank: int) -> RankSlots:
        return self.held.setdefault(rank, RankSlots(rank))

    def peers_elsewhere(self, rank: int) -> tuple[int, ...]:
        """Ranks with the same replica region, or none where this node is the home of all of them: then the bytes have
        to be sent (rule 30, carried ranks)."""
        peers = self.peers.get(rank, ())
        return peers if not self._seated.issuperset(peers) else ()

    def joint_of(self, keeper: Keeper) -> RankSlots:
        group, member = keeper
        return self.joint.setdefault(keeper, RankSlots(group.ranks[member]))

    def find_joint(self, group: RankGroup, member: int, version: Version) -> Slot | None:
        """Where groups have changed, a node has joint copies of one version for the former group and for the present
        one."""
        kept = self.joint.get((group, member))
        return kept.find(version) if kept is not None else None

    def keep_joint(self, keepers: set[Keeper]) -> None:
        self._keeps = keepers

    def rank_slots_of(self, ref: SlotRef) -> RankSlots:
        return self._by_segment[ref.segment]

    def knows(self, ref: SlotRef) -> bool:
        """Whether its segment has not been released."""
        return ref.segment in self._by_segment

    def is_quiet(self) -> bool:
        slots = (slot for rank_slots in self.all() for slot in rank_slots.by_ref.values())
        return all(slot.state in (SlotState.FREE, SlotState.SEALED, SlotState.GRANTED) for slot in slots)

    def inventory(self, live: tuple[Live, ...]) -> Inventory:
        return Inventory(
            live=Lives.of(live),
            own=Copies.of(slot.copy for each in self.own.values() for slot in each.sealed() if slot.copy),
            held=Copies.of(slot.copy for each in self.held.values() for slot in each.sealed() if slot.copy),
            joint=tuple(slot.joint for each in self.joint.values() for slot in each.sealed() if slot.joint),
        )

    def copies_of(self, version: Version, ranks: tuple[int, ...]) -> tuple[tuple[SlotRef, Copy], ...]:
        """One copy of each rank: a full one where there is one."""
        found = []
        for rank in ranks:
            slots = [rank_slots.find(version) for rank_slots in self.of(rank)]
            there = [(slot.ref, slot.copy) for slot in slots if slot is not None and slot.copy is not None]
            found += sorted(there, key=lambda place: not place[1].seal.full)[:1]
        return tuple(found)

    # --- what may be freed -------------------------------------------------------------------------------------------

    def is_expired(self, version: Version) -> bool:
        """The permit has passed it, so the job will not go back to it."""
        return self.permit is not None and may_overwrite(version, self.permit)

    def apply_permit(self, permit: Permit) -> None:
        self.permit = permit
        for rank_slots in self.all():
            rank_slots.apply_permit(permit)

    def adopt(self, plan: Plan) -> None:
        self.permit, self._holds = plan.permit, frozenset(plan.held)
        for rank_slots in self.all():
            if plan.resume is None:
                rank_slots.free_all_in(SlotState.SEALED)
            else:
                rank_slots.drop_above(plan.resume)
            rank_slots.apply_permit(plan.permit)
        self._seated = frozenset(order.rank for order in plan.orders)
        for order in plan.orders:
            self.own_of(order.rank)
        self._release_reservations({order.rank for order in plan.orders})

    def drop_damaged(self, rank: int, version: Version) -> None:
        """A copy whose bytes are damaged counts as none. Where a node held copies of a rank before it became its
        home (rule 30, carried ranks) it has two, and the one that was read is the rank's own: the other stays."""
        found = ((rank_slots, rank_slots.find(version)) for rank_slots in self.of(rank))
        for rank_slots, slot in found:
            if slot is not None:
                rank_slots.free(slot)
                return

    def on_streams_cut(self) -> None:
        for rank_slots in self.all():
            rank_slots.free_all_in(SlotState.ARRIVING)
            rank_slots.end_all_reading()

    # --- segments ----------------------------------------------------------------------------------------------------

    def ensure_segment(self, rank_slots: RankSlots, geometry: Geometry) -> None:
        allocating = any(other is rank_slots and g == geometry for other, g in self._allocating.values())
        if rank_slots.has_geometry(geometry) or allocating:
            return
        self._segments += 1
        self._allocating[self._segments] = (rank_slots, geometry)
        self._out.append(Allocate(segment=self._segments, geometry=geometry, count=self.slots_per_segment))

    def retry_allocations(self) -> None:
        for rank, rank_slots in self.own.items():
            if (geometry := self.geometry.get(rank)) is not None:
                self.ensure_segment(rank_slots, geometry)

    def on_allocated(self, segment: int) -> None:
        rank_slots, geometry = self._allocating.pop(segment)
        rank_slots.add(segment, geometry, self.slots_per_segment)
        self._by_segment[segment] = rank_slots

    def on_allocation_failed(self, segment: int) -> RankSlots:
        """Returns the slots that the segment was for."""
        return self._allocating.pop(segment)[0]

    def release_outgrown(self) -> None:
        own = [(rank_slots, self.geometry.get(rank)) for rank, rank_slots in self.own.items()]
        held = [(rank_slots, self.held_geometry.get(rank)) for rank, rank_slots in self.held.items()]
        joint = [(rank_slots, self.joint_geometry.get(keeper)) for keeper, rank_slots in self.joint.items()]
        for rank_slots, geometry in own + held + joint:
            for segment in list(rank_slots.remove_outgrown(geometry)) if geometry else ():
                self._release(segment)

    def _release_reservations(self, seated: set[int]) -> None:
        """A node that has seats needs no memory for the ranks that it rehearsed and that other nodes have taken."""
        for rank in [rank for rank in self.own if rank not in seated] if seated else []:
            self._release_if_empty(self.own[rank])

    def release_former_holdings(self) -> None:
        """Releases slots of ranks whose copies go to other nodes by now. Rule 17 (placement by seat): a former holder
        keeps the floor until a permit frees it."""
        for rank in [rank for rank in self.held if rank not in self._holds]:
            self._release_if_empty(self.held[rank])
        for keeper in [keeper for keeper in self.joint if keeper not in self._keeps]:
            self._release_if_empty(self.joint[keeper])

    def _release_if_empty(self, rank_slots: RankSlots) -> None:
        if rank_slots.is_empty():
            for segment in sorted({ref.segment for ref in rank_slots.by_ref}):
                self._release(segment)
            rank_slots.by_ref.clear()

    def _release(self, segment: int) -> None:
        del self._by_segment[segment]
        self._out.append(ReleaseSegment(segment=segment))
