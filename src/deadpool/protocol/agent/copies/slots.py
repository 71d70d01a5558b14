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
from deadpool.protocol.messages import Copy, Inventory, JointCopy, Live, Lives, NodeCopies, Permit, Plan, SlotRef
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
    given_back: set[int] = field(default_factory=set)  # segments that are released as soon as they are free
    wanted: int = 0  # how many slots; `slot_growth.py` decides it, by what follows
    lacked: bool = False  # something found no free slot
    uses: int = 0  # since `wanted` was last decided
    least_unused: int | None = None  # at any of these uses

    def add(self, segment: int, geometry: Geometry, count: int) -> None:
        for index in range(count):
            ref = SlotRef(segment=segment, index=index)
            self.by_ref[ref] = Slot(ref, geometry)

    def take(self, geometry: Geometry, state: SlotState) -> Slot | None:
        for slot in self.by_ref.values():
            if slot.state is SlotState.FREE and slot.geometry == geometry and slot.ref.segment not in self.given_back:
                slot.state = state
                if state is SlotState.ARRIVING:
                    self.note_use()
                return slot
        self.lacked |= state is SlotState.ARRIVING  # a trainer is granted all that there are, and says what it lacks
        return None

    def note_use(self) -> None:
        unused = sum(slot.state in (SlotState.FREE, SlotState.GRANTED) for slot in self.by_ref.values())
        self.least_unused = unused if self.least_unused is None else min(self.least_unused, unused)
        self.uses += 1

    def has_geometry(self, geometry: Geometry) -> bool:
        """Whether any slot, free or not, has this geometry and stays: else a segment has to be allocated."""
        return self.count(geometry) > 0

    def count(self, geometry: Geometry) -> int:
        """How many slots of this geometry there are, without those that are given back."""
        return sum(
            slot.geometry == geometry and ref.segment not in self.given_back for ref, slot in self.by_ref.items()
        )

    def slots_in(self, segment: int) -> int:
        return sum(ref.segment == segment for ref in self.by_ref)

    def single_segments(self, geometry: Geometry) -> list[int]:
        """The segments that were added for one further slot, the oldest first."""
        segments = sorted({ref.segment for ref, slot in self.by_ref.items() if slot.geometry == geometry})
        return [each for each in segments if each not in self.given_back and self.slots_in(each) == 1]

    def keep_again(self, geometry: Geometry) -> bool:
        """Keeps a slot that was given back and is still there. False: there is none of this geometry."""
        kept = (ref.segment for ref, slot in self.by_ref.items() if slot.geometry == geometry)
        segment = next((each for each in kept if each in self.given_back), None)
        if segment is not None:
            self.given_back.discard(segment)
        return segment is not None

    def remove_given_back(self) -> Iterator[int]:
        """Removes the segments that were given back and are free by now, and yields their numbers."""
        for segment in sorted(self.given_back):
            refs = [ref for ref in self.by_ref if ref.segment == segment]
            if all(self.by_ref[ref].state is SlotState.FREE for ref in refs):
                self.given_back.discard(segment)
                for ref in refs:
                    del self.by_ref[ref]
                if refs:  # else it was outgrown before
                    yield segment

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
        self.slots_per_segment = 0  # of the first one of a geometry
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
        self._allocating: dict[int, tuple[RankSlots, Geometry, int]] = {}  # and the number of slots

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
            own=NodeCopies.of(slot.copy for each in self.own.values() for slot in each.sealed() if slot.copy),
            held=NodeCopies.of(slot.copy for each in self.held.values() for slot in each.sealed() if slot.copy),
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
        allocating = any(other is rank_slots and g == geometry for other, g, _ in self._allocating.values())
        if not rank_slots.has_geometry(geometry) and not allocating:
            self.allocate(rank_slots, geometry, self.slots_per_segment)

    def allocate(self, rank_slots: RankSlots, geometry: Geometry, count: int) -> None:
        self._segments += 1
        self._allocating[self._segments] = (rank_slots, geometry, count)
        self._out.append(Allocate(segment=self._segments, geometry=geometry, count=count))

    def is_allocating(self, rank_slots: RankSlots) -> bool:
        return any(other is rank_slots for other, _, _ in self._allocating.values())

    def own_in_use(self) -> Iterator[tuple[RankSlots, Geometry]]:
        """Slots of the ranks whose home this node is, with the geometry of their state."""
        for rank, rank_slots in self.own.items():
            if rank in self._seated and (geometry := self.geometry.get(rank)) is not None:
                yield rank_slots, geometry

    def in_use(self) -> Iterator[tuple[RankSlots, Geometry]]:
        """Yields the slots of ranks, and those of what the placement keeps here for others."""
        yield from self.own_in_use()
        for rank, rank_slots in self.held.items():
            if rank in self._holds and (held := self.held_geometry.get(rank)) is not None:
                yield rank_slots, held
        for keeper, rank_slots in self.joint.items():
            if keeper in self._keeps and (joint := self.joint_geometry.get(keeper)) is not None:
                yield rank_slots, joint

    @property
    def bytes_in_all(self) -> int:
        """What copies take, or are about to take, on this node."""
        taken = sum(slot.geometry.slot_bytes for each in self.all() for slot in each.by_ref.values())
        return taken + sum(count * geometry.slot_bytes for _, geometry, count in self._allocating.values())

    def release_given_back(self) -> None:
        for rank_slots in self.all():
            for segment in list(rank_slots.remove_given_back()):
                self._release(segment)

    def retry_allocations(self) -> None:
        for rank, rank_slots in self.own.items():
            if (geometry := self.geometry.get(rank)) is not None:
                self.ensure_segment(rank_slots, geometry)

    def on_allocated(self, segment: int) -> None:
        rank_slots, geometry, count = self._allocating.pop(segment)
        rank_slots.add(segment, geometry, count)
        self._by_segment[segment] = rank_slots

    def on_allocation_failed(self, segment: int) -> tuple[RankSlots, Geometry]:
        """Returns what the segment was for."""
        rank_slots, geometry, _ = self._allocating.pop(segment)
        return rank_slots, geometry

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
