"""How a node's copies come to be: captures of its own ranks are hashed, sealed and reported, then go to their holders.

Where copies lie is in `slots.py`, how they reach holders in `pushes.py`, and how copies come from other nodes in
`arrivals.py`. Nothing is sealed, sent or overwritten while the node is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deadpool.protocol.agent.copies.arrivals import Arrivals
from deadpool.protocol.agent.copies.joint import JointCopies
from deadpool.protocol.agent.copies.pushes import Pushes, PushQueue
from deadpool.protocol.agent.copies.slot_growth import SlotGrowth
from deadpool.protocol.agent.copies.slots import RankSlots, Slot, Slots, SlotState
from deadpool.protocol.agent.phase import GenerationState
from deadpool.protocol.causes import Miss
from deadpool.protocol.effects import AgentEffect, HashSlot, ToCoordinator, WriteSeal
from deadpool.protocol.identity import Layout, Version
from deadpool.protocol.inputs import Offered, PushFailed
from deadpool.protocol.messages import (
    Captured,
    Copy,
    Holder,
    Inventory,
    Live,
    Missed,
    Permit,
    Plan,
    Sealed,
    Settings,
    SlotRef,
)
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal

JointCopiesOf = Callable[[GenerationState, Slots, list[AgentEffect]], JointCopies]


class Copies:
    def __init__(self, current: GenerationState, out: list[AgentEffect], joint: JointCopiesOf = JointCopies) -> None:
        self._current, self._out = current, out
        self._slots = Slots(out)
        self._pushes = Pushes(current, self._slots, out, is_hashing_older=self._is_hashing_older)
        self.arrivals = Arrivals(current, self._slots, out, seal=self._seal)
        self.growth = SlotGrowth(current, self._slots)
        self._joint = joint(current, self._slots, out)
        self._layout: Layout | None = None
        self._hashing: dict[SlotRef, Captured] = {}

    def configure(self, settings: Settings) -> None:
        self.growth.configure(settings.slots)
        self._layout = settings.layout

    # --- what is there -----------------------------------------------------------------------------------------------

    @property
    def own(self) -> dict[int, RankSlots]:
        return self._slots.own

    @property
    def held(self) -> dict[int, RankSlots]:
        return self._slots.held

    @property
    def kept_for_others(self) -> Iterator[RankSlots]:
        """Whole copies of other nodes' ranks, and joint copies of them."""
        yield from self._slots.held.values()
        yield from self._slots.joint.values()

    @property
    def permit(self) -> Permit | None:
        return self._slots.permit

    @property
    def holders(self) -> tuple[Holder, ...]:
        return self._pushes.holders

    @property
    def push_queues(self) -> dict[tuple[int, str], PushQueue]:
        return self._pushes.queues

    def find_joint(self, group: RankGroup, member: int, version: Version) -> Slot | None:
        return self._slots.find_joint(group, member, version)

    def is_expired(self, version: Version) -> bool:
        return self._slots.is_expired(version)

    def is_quiet(self) -> bool:
        """No slot is being written, and all that was written is sealed."""
        return self._slots.is_quiet()

    def inventory(self, live: tuple[Live, ...]) -> Inventory:
        return self._slots.inventory(live)

    def copies_of(self, version: Version, ranks: tuple[int, ...]) -> tuple[tuple[SlotRef, Copy], ...]:
        return self._slots.copies_of(version, ranks)

    def find_own(self, rank: int, version: Version) -> SlotRef | None:
        slot = self.own[rank].find(version) if rank in self.own else None
        return slot.ref if slot else None

    def pin_own(self, ranks: tuple[int, ...], version: Version) -> tuple[tuple[SlotRef, Copy], ...] | None:
        """Keeps the slots of these ranks from being overwritten until unpin(), or the next fence. None: one is gone."""
        slots = [self.own[rank].find(version) if rank in self.own else None for rank in ranks]
        if self._current.is_fenced or not all(slots):
            return None
        pinned = [(slot, slot.copy) for slot in slots if slot is not None and slot.copy is not None]
        for slot, _ in pinned:
            slot.readers += 1
        return tuple((slot.ref, copy) for slot, copy in pinned)

    def unpin(self, refs: tuple[SlotRef, ...]) -> None:
        for ref in refs:
            if self._slots.knows(ref):
                self._slots.rank_slots_of(ref).end_reading(ref)

    # --- fence, plan, permit -----------------------------------------------------------------------------------------

    def fence(self) -> None:
        self._pushes.fence()
        self.arrivals.fence()
        self._joint.fence()

    def on_streams_cut(self) -> None:
        """No stream of an older generation reads or writes a slot any more."""
        self._slots.on_streams_cut()
        self.arrivals.on_streams_cut()
        self._joint.on_streams_cut()

    def on_writer_ended(self, rank: int) -> None:
        """The rank's trainer is at rest or gone: what it had not declared captured is lost."""
        if rank in self.own:
            self.own[rank].free_all_in(SlotState.GRANTED)

    def adopt(self, plan: Plan, node: str) -> None:
        assert self._layout is not None
        self._pushes.adopt(plan, self._layout)
        self._slots.adopt(plan)
        self._joint.adopt(plan, self._layout, node)

    def go(self, plan: Plan) -> None:
        self._pushes.go(plan)

    def apply_permit(self, permit: Permit) -> None:
        self._slots.apply_permit(permit)
        self._joint.on_permit()
        self._serve_waiting()
        self._slots.release_outgrown()
        self._slots.release_former_holdings()
        self._slots.release_given_back()
        self.retry()

    def retry(self) -> None:
        """Tries allocations and pushes that failed again, at every heartbeat and permit."""
        if not self._current.is_fenced:
            self._slots.retry_allocations()
            self.growth.advance()
        self._pushes.retry()

    def _serve_waiting(self) -> None:
        self.arrivals.serve_waiting()
        self._joint.serve_waiting()

    # --- what comes from other nodes ---------------------------------------------------------------------------------

    def on_offered(self, offer: Offered) -> None:
        if offer.group is None:
            self.arrivals.on_offered(offer)
        else:
            self._joint.on_offered(offer)

    def on_received(self, ref: SlotRef, copy: Copy, bytes_received: int) -> None:
        if self._joint.knows(ref):
            self._joint.on_received(ref, copy, bytes_received)
        else:
            self.arrivals.on_received(ref, copy, bytes_received)

    def on_receive_failed(self, ref: SlotRef, rank: int) -> None:
        if self._joint.knows(ref):
            self._joint.on_failed(ref, rank)
        else:
            self.arrivals.on_failed(ref)

    # --- damage ------------------------------------------------------------------------------------------------------

    def drop_damaged(self, rank: int, version: Version, group: RankGroup | None = None) -> None:
        """Drops a copy that is damaged. If `group` is given it is the joint copy that this rank's node keeps for it."""
        if group is not None:
            self._joint.drop_damaged(group, rank, version)
        else:
            self._slots.drop_damaged(rank, version)
            if rank in self.own and not self._current.is_fenced:
                self._pushes.abandon(rank, version)

    def replace_at_holder(self, rank: int, node: str, version: Version) -> None:
        """A holder has lost its copy since the plan: it is sent again."""
        if not self._current.is_fenced and rank in self.own:
            self._pushes.push_again(rank, node, version)

    def send_to_group_again(self, group: RankGroup, node: str, version: Version) -> None:
        """A node has lost the joint copy that it keeps for this group."""
        for rank in [rank for rank in group.ranks if rank in self.own]:
            self.replace_at_holder(rank, node, version)

    # --- memory ------------------------------------------------------------------------------------------------------

    def declare(self, rank: int, geometry: Geometry, peers: tuple[int, ...]) -> None:
        self._slots.geometry[rank], self._slots.peers[rank] = geometry, peers
        rank_slots = self._slots.own_of(rank)
        rank_slots.withdraw_grants(geometry)
        self._slots.ensure_segment(rank_slots, geometry)
        self._slots.release_outgrown()

    def declare_as(self, rank: int, other: int) -> None:
        """This rank's state has the geometry of the other's, once that is known."""
        if (geometry := self._slots.geometry.get(other)) is not None:
            self.declare(rank, geometry, self._slots.peers.get(other, ()))

    def reserve(self, rank: int, geometry: Geometry) -> None:
        """A spare that has rehearsed a rank allocates the memory for its snapshot ahead: in a recovery it would cost
        time."""
        self._slots.ensure_segment(self._slots.own_of(rank), geometry)

    def on_allocated(self, segment: int) -> None:
        self._slots.on_allocated(segment)
        self._serve_waiting()
        self.growth.advance()

    def on_allocation_failed(self, segment: int, reason: str) -> bool:
        """Returns whether it was for further slots, which a rank can do without."""
        rank_slots, geometry = self._slots.on_allocation_failed(segment)
        if rank_slots.has_geometry(geometry):
            self.growth.on_refused()
            return True
        self.arrivals.refuse_waiting(rank_slots.rank, reason)
        self._joint.refuse_waiting(rank_slots.rank, reason)
        return False

    def use_geometry_of(self, ref: SlotRef) -> None:
        """A trainer that loads a snapshot has state of its geometry from then on, until it declares another."""
        rank_slots = self._slots.rank_slots_of(ref)
        self._slots.geometry[rank_slots.rank] = rank_slots.by_ref[ref].geometry

    # --- captures of own ranks ---------------------------------------------------------------------------------------

    def grants(self, rank: int) -> Iterator[SlotRef]:
        """Takes free slots of the rank's present geometry for its trainer."""
        rank_slots, geometry = self.own.get(rank), self._slots.geometry.get(rank)
        if not self._current.is_running or rank_slots is None or geometry is None:
            return
        while (slot := rank_slots.take(geometry, SlotState.GRANTED)) is not None:
            yield slot.ref

    def on_no_slot(self, rank: int) -> None:
        """Notes that the trainer of this rank has missed a version because no slot was free."""
        if rank in self.own:
            self.own[rank].lacked = True
            self.growth.advance()

    def on_captured(self, rank: int, capture: Captured) -> None:
        slot = self.own[rank].by_ref.get(capture.slot) if rank in self.own else None
        if slot is None or slot.state is not SlotState.GRANTED:
            reason = "its slot was given back before it was said to be full"
            number, generation = capture.version.number, self._current.generation
            missed = Missed(generation=generation, rank=rank, number=number, cause=Miss.SLOT_GIVEN_BACK, reason=reason)
            self._out.append(ToCoordinator(message=missed))
            return
        slot.state = SlotState.HASHING
        self.own[rank].note_use()
        self._hashing[slot.ref] = capture
        self._out.append(HashSlot(slot=slot.ref, geometry=slot.geometry, record_bytes=capture.record_bytes))

    def _is_hashing_older(self, rank: int, version: Version) -> bool:
        return any(
            capture.version.number < version.number and self._slots.rank_slots_of(ref).rank == rank
            for ref, capture in self._hashing.items()
        )

    def on_hashed(self, ref: SlotRef, digest: Digest) -> None:
        if self._joint.knows(ref):
            self._joint.on_hashed(ref, digest)
            return
        rank_slots, capture = self._slots.rank_slots_of(ref), self._hashing.pop(ref)
        slot = rank_slots.by_ref[ref]
        stale = self._current.is_fenced or capture.generation != self._current.generation
        if stale or self.is_expired(capture.version):
            rank_slots.free(slot)
            self._pushes.send_next()
            return
        self._seal(rank_slots, ref, self._copy(rank_slots.rank, capture, slot.geometry, digest))
        self._pushes.on_sealed(rank_slots.rank, capture.version)

    def _copy(self, rank: int, capture: Captured, geometry: Geometry, digest: Digest) -> Copy:
        extent = Extent(
            record_bytes=capture.record_bytes,
            unique_bytes=geometry.unique_bytes,
            replica_bytes=geometry.replica_bytes,
        )
        seal = Seal(rank=rank, version=capture.version, extent=extent, digest=digest, full=True)
        return Copy(seal=seal, geometry=geometry, peers=self._slots.peers_elsewhere(rank))

    def _seal(self, rank_slots: RankSlots, ref: SlotRef, copy: Copy) -> None:
        rank_slots.seal(ref, copy)
        self._out.append(WriteSeal(slot=ref, copy=copy))
        self._out.append(ToCoordinator(message=Sealed(generation=self._current.generation, copy=copy)))

    def on_push_ended(self, rank: int, node: str, version: Version, failure: PushFailed | None) -> None:
        self._pushes.on_ended(rank, node, version, failure)

    def on_fetched(self, ref: SlotRef, copy: Copy) -> bool:
        """Whether the seat it was for may go on with it."""
        sealed = self.arrivals.on_fetched(ref, copy)
        if sealed:
            self._pushes.send_next()
        return sealed or not self._current.is_fenced
