"""A node's copies: its own ranks' snapshots and those it holds for other nodes. Part of the agent's core.

Every slot is on a shelf, one shelf per rank and role. Captures of own ranks are hashed, sealed, reported and queued for
their holders; offers of other nodes are given a slot; fetches fill a newcomer's shelf. Nothing is sealed, sent or
overwritten while fenced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from deadpool.protocol.copies import Shelf, Slot, SlotState, may_overwrite
from deadpool.protocol.effects import (
    AcceptOffer,
    AgentEffect,
    Allocate,
    FetchCopy,
    HashSlot,
    Offered,
    PushCopy,
    RefuseOffer,
    ReleaseSegment,
    ToCoordinator,
    WriteSeal,
)
from deadpool.protocol.identity import NO_GENERATION, Generation, Version
from deadpool.protocol.messages import (
    Captured,
    Copy,
    Fetch,
    Holder,
    Inventory,
    Live,
    Missed,
    Permit,
    Plan,
    Sealed,
    SlotRef,
    Stored,
)
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal


@dataclass(slots=True)
class Lane:
    """Copies of one rank on their way to one holder, one at a time and in order: floor first is a matter of order."""

    rank: int
    holder: Holder
    queue: deque[Version] = field(default_factory=deque)
    sending: tuple[Version, SlotRef] | None = None
    failures: int = 0
    resting: bool = False  # failed, and waits for the next heartbeat or permit


PUSH_ATTEMPTS = 4
ALREADY_STORED = "already stored"  # refused, and yet what the sender wanted
NO_ROOM = "no free slot"  # refused for now: the next permit brings room


class Storehouse:
    def __init__(self, out: list[AgentEffect]) -> None:
        self._out = out
        self.slots_per_shelf = 0
        self.generation: Generation = NO_GENERATION
        self.fenced = False
        self.running = False
        self.permit: Permit | None = None
        self.own: dict[int, Shelf] = {}
        self.held: dict[int, Shelf] = {}
        self.geometry: dict[int, Geometry] = {}  # of each own rank's state, as last declared or fetched
        self.peers: dict[int, tuple[int, ...]] = {}
        self.lanes: dict[tuple[int, str], Lane] = {}
        self.holders: tuple[Holder, ...] = ()
        self._holds: frozenset[int] = frozenset()  # ranks whose copies the placement sends here
        self._segments = 0
        self._homes: dict[int, Shelf] = {}  # segment -> shelf
        self._making: dict[int, tuple[Shelf, Geometry]] = {}
        self._captures: dict[SlotRef, Captured] = {}
        self._offers: list[Offered] = []  # wait for a segment
        self._fetching: dict[SlotRef, Seal] = {}
        self._held_geometry: dict[int, Geometry] = {}  # of the latest offer
        self._fetches: list[tuple[int, Fetch]] = []  # wait for a segment or a slot

    # --- fence and plan ----------------------------------------------------------------------------------------------

    def fence(self, generation: Generation) -> None:
        self.generation, self.fenced, self.running = generation, True, False
        self.lanes.clear()
        self._fetches.clear()
        for offer in self._offers:
            self._out.append(RefuseOffer(offer=offer.offer, reason="fenced"))
        self._offers.clear()

    def streams_ended(self) -> None:
        """No stream of an older generation reads or writes a slot any more."""
        for shelf in self._shelves():
            shelf.free_all_in(SlotState.ARRIVING)
            shelf.end_reading()
        self._fetching.clear()

    def writer_ended(self, rank: int) -> None:
        """The rank's trainer is at rest or gone: what it had not declared captured is lost."""
        if rank in self.own:
            self.own[rank].free_all_in(SlotState.GRANTED)

    def is_quiet(self) -> bool:
        slots = (slot for shelf in self._shelves() for slot in shelf.slots.values())
        return all(slot.state in (SlotState.FREE, SlotState.SEALED, SlotState.GRANTED) for slot in slots)

    def inventory(self, live: tuple[Live, ...]) -> Inventory:
        return Inventory(
            live=live,
            own=tuple(slot.copy for shelf in self.own.values() for slot in shelf.sealed() if slot.copy),
            held=tuple(slot.copy for shelf in self.held.values() for slot in shelf.sealed() if slot.copy),
        )

    def adopt(self, plan: Plan) -> None:
        self.generation, self.fenced, self.running = plan.generation, False, False
        self.permit, self.holders, self._holds = plan.permit, plan.holders, frozenset(plan.held)
        for shelf in self._shelves():
            if plan.resume is None:
                shelf.free_all_in(SlotState.SEALED)
            else:
                shelf.drop_above(plan.resume)
            shelf.obey(plan.permit)
        for order in plan.orders:
            self.own.setdefault(order.rank, Shelf(order.rank))
        self._give_up_reservations({order.rank for order in plan.orders})

    def go(self, plan: Plan) -> None:
        """Copies that died with a node are replicated anew, floor first, before anything newer."""
        self.running = True
        for order in plan.orders:
            for node, version in order.pushes:
                self._lane(order.rank, node).queue.append(version)
        self.send_next()

    # --- room --------------------------------------------------------------------------------------------------------

    def declare(self, rank: int, geometry: Geometry, peers: tuple[int, ...]) -> None:
        self.geometry[rank], self.peers[rank] = geometry, peers
        shelf = self.own.setdefault(rank, Shelf(rank))
        shelf.give_back(geometry)
        self._make_room(shelf, geometry)
        self._release_outgrown()

    def reserve(self, rank: int, geometry: Geometry) -> None:
        """A spare that has rehearsed a rank makes room for its snapshot ahead: making it takes time in a recovery."""
        self._make_room(self.own.setdefault(rank, Shelf(rank)), geometry)

    def _give_up_reservations(self, seated: set[int]) -> None:
        """Of ranks that others have taken, once this node has ranks of its own."""
        for rank in [rank for rank in self.own if rank not in seated] if seated else []:
            self._give_up_if_empty(self.own[rank])

    def _give_up_former_ranks(self) -> None:
        """Of ranks whose copies go elsewhere by now. Rule 17: an ex-holder keeps the floor until a permit frees it."""
        for rank in [rank for rank in self.held if rank not in self._holds]:
            self._give_up_if_empty(self.held[rank])

    def _give_up_if_empty(self, shelf: Shelf) -> None:
        if all(slot.state is SlotState.FREE for slot in shelf.slots.values()):
            for segment in sorted({ref.segment for ref in shelf.slots}):
                del self._homes[segment]
                self._out.append(ReleaseSegment(segment=segment))
            shelf.slots.clear()

    def _make_room(self, shelf: Shelf, geometry: Geometry) -> None:
        being_made = any(s is shelf and g == geometry for s, g in self._making.values())
        if shelf.has_room_for(geometry) or being_made:
            return
        self._segments += 1
        self._making[self._segments] = (shelf, geometry)
        self._out.append(Allocate(segment=self._segments, geometry=geometry, count=self.slots_per_shelf))

    def allocated(self, segment: int) -> None:
        shelf, geometry = self._making.pop(segment)
        shelf.add(segment, geometry, self.slots_per_shelf)
        self._homes[segment] = shelf
        self._serve_waiting()

    def allocation_failed(self, segment: int, reason: str) -> None:
        shelf, _ = self._making.pop(segment)
        refused = [offer for offer in self._offers if offer.copy.seal.rank == shelf.rank]
        self._offers = [offer for offer in self._offers if offer not in refused]
        for offer in refused:
            self._out.append(RefuseOffer(offer=offer.offer, reason=reason))

    def _serve_waiting(self) -> None:
        offers, self._offers = self._offers, []
        for offer in offers:
            self.offered(offer)
        fetches, self._fetches = self._fetches, []
        for rank, fetch in fetches:
            self.fetch(rank, fetch)

    def obey(self, permit: Permit) -> None:
        self.permit = permit
        for shelf in self._shelves():
            shelf.obey(permit)
        self._serve_waiting()
        self._release_outgrown()
        self._give_up_former_ranks()
        self.retry()

    def is_dead(self, version: Version) -> bool:
        """The permit has passed it: nobody will go back to it."""
        return self.permit is not None and may_overwrite(version, self.permit)

    def _release_outgrown(self) -> None:
        own = [(shelf, self.geometry.get(rank)) for rank, shelf in self.own.items()]
        held = [(shelf, self._held_geometry.get(rank)) for rank, shelf in self.held.items()]
        for shelf, geometry in own + held:
            for segment in list(shelf.outgrown(geometry)) if geometry else ():
                del self._homes[segment]
                self._out.append(ReleaseSegment(segment=segment))

    # --- captures of own ranks ---------------------------------------------------------------------------------------

    def grants(self, rank: int) -> Iterator[SlotRef]:
        """Free slots of the rank's present geometry become its trainer's."""
        shelf, geometry = self.own.get(rank), self.geometry.get(rank)
        while self.running and shelf and geometry and (slot := shelf.take(geometry, SlotState.GRANTED)):
            yield slot.ref

    def captured(self, rank: int, capture: Captured) -> None:
        slot = self.own[rank].slots.get(capture.slot) if rank in self.own else None
        if slot is None or slot.state is not SlotState.GRANTED:
            self._report_missed(rank, capture.version, "its slot was given back before it was said to be full")
            return
        slot.state = SlotState.HASHING
        self._captures[slot.ref] = capture
        self._out.append(HashSlot(slot=slot.ref, geometry=slot.geometry, record_bytes=capture.record_bytes))

    def hashed(self, ref: SlotRef, digest: Digest) -> None:
        shelf, capture = self._homes[ref.segment], self._captures.pop(ref)
        slot = shelf.slots[ref]
        stale = self.fenced or capture.generation != self.generation
        if stale or self.is_dead(capture.version):
            shelf.free(slot)
            self.send_next()
            return
        copy = self._copy(shelf.rank, capture, slot.geometry, digest)
        self._seal(shelf, ref, copy)
        for holder in self.holders:
            lane = self._lane(shelf.rank, holder.node)
            lane.queue = deque(sorted([*lane.queue, capture.version], key=lambda version: version.number))
        self.send_next()

    def _copy(self, rank: int, capture: Captured, geometry: Geometry, digest: Digest) -> Copy:
        extent = Extent(
            record_bytes=capture.record_bytes,
            unique_bytes=geometry.unique_bytes,
            replica_bytes=geometry.replica_bytes,
        )
        seal = Seal(rank=rank, version=capture.version, extent=extent, digest=digest, full=True)
        return Copy(seal=seal, geometry=geometry, peers=self.peers.get(rank, ()))

    def _seal(self, shelf: Shelf, ref: SlotRef, copy: Copy) -> None:
        shelf.seal(ref, copy)
        self._out.append(WriteSeal(slot=ref, copy=copy))
        self._out.append(ToCoordinator(message=Sealed(generation=self.generation, copy=copy)))

    # --- to holders --------------------------------------------------------------------------------------------------

    def _lane(self, rank: int, node: str) -> Lane:
        holder = next(h for h in self.holders if h.node == node)
        return self.lanes.setdefault((rank, node), Lane(rank, holder))

    def retry(self) -> None:
        """At every heartbeat and permit: what failed is tried again."""
        for rank, shelf in self.own.items():
            if not self.fenced and (geometry := self.geometry.get(rank)) is not None:
                self._make_room(shelf, geometry)  # an allocation may have failed
        for lane in self.lanes.values():
            lane.resting = False
        self.send_next()

    def send_next(self) -> None:
        if self.fenced or not self.running:
            return
        for lane in self.lanes.values():
            self._skip_dead(lane)
            if lane.sending is None and lane.queue and not lane.resting and not self._older_is_hashed(lane):
                self._send(lane, self.own[lane.rank].find(lane.queue[0]))

    def _older_is_hashed(self, lane: Lane) -> bool:
        """Checksums may end out of order; a floor that is captured anew must not be overtaken."""
        return any(
            capture.version.number < lane.queue[0].number and self._homes[ref.segment].rank == lane.rank
            for ref, capture in self._captures.items()
        )

    def _skip_dead(self, lane: Lane) -> None:
        """A version that the permit has passed would only be thrown away by its holder."""
        while lane.queue and self.is_dead(lane.queue[0]):
            lane.queue.popleft()

    def _send(self, lane: Lane, slot: Slot | None) -> None:
        """A floor that is still being fetched keeps its place at the head of the lane."""
        if slot is None or slot.copy is None:
            return
        slot.readers += 1
        lane.sending = (lane.queue[0], slot.ref)
        full = not slot.copy.peers
        self._out.append(
            PushCopy(slot=slot.ref, copy=slot.copy, holder=lane.holder, generation=self.generation, full=full)
        )

    def push_ended(self, rank: int, node: str, version: Version, failure: str | None) -> None:
        lane = self.lanes.get((rank, node))
        if lane is None or lane.sending is None or lane.sending[0] != version:
            return  # of a generation that is over
        self.own[rank].done_reading(lane.sending[1])
        if failure is not None and ALREADY_STORED in failure:
            failure = None
        lane.sending, lane.resting = None, failure is not None
        lane.failures = 0 if failure is None else lane.failures + (NO_ROOM not in failure)
        given_up = lane.failures >= PUSH_ATTEMPTS and not self._is_floor(version)
        if (failure is None or given_up) and lane.queue and lane.queue[0] == version:
            lane.queue.popleft()
        if given_up:
            lane.failures = 0
            self._report_missed(rank, version, f"holder {node} did not store it: {failure}")
        self.send_next()

    def _is_floor(self, version: Version) -> bool:
        """What a rollback would need is offered for ever: nothing newer may go to a holder that lacks it."""
        return self.permit is not None and version == self.permit.watermark

    def _report_missed(self, rank: int, version: Version, reason: str) -> None:
        missed = Missed(generation=self.generation, rank=rank, number=version.number, reason=reason)
        self._out.append(ToCoordinator(message=missed))

    # --- from other nodes --------------------------------------------------------------------------------------------

    def offered(self, offer: Offered) -> None:
        if self.fenced or offer.generation != self.generation:
            self._out.append(RefuseOffer(offer=offer.offer, reason="another generation"))
            return
        seal = offer.copy.seal
        shelf = self.held.setdefault(seal.rank, Shelf(seal.rank))
        if self.is_dead(seal.version) or shelf.find(seal.version):
            reason = "no longer needed" if self.is_dead(seal.version) else ALREADY_STORED
            self._out.append(RefuseOffer(offer=offer.offer, reason=reason))
            return
        self._accept(offer, shelf)

    def _accept(self, offer: Offered, shelf: Shelf) -> None:
        geometry = offer.copy.geometry if offer.copy.seal.full else offer.copy.geometry.without_replica()
        self._held_geometry[shelf.rank] = geometry
        self._make_room(shelf, geometry)
        if not shelf.has_room_for(geometry):
            self._offers.append(offer)
        elif (slot := shelf.take(geometry, SlotState.ARRIVING)) is not None:
            self._out.append(AcceptOffer(offer=offer.offer, slot=slot.ref))
        else:
            self._out.append(RefuseOffer(offer=offer.offer, reason=NO_ROOM))

    def received(self, ref: SlotRef, copy: Copy, bytes_received: int) -> None:
        shelf = self._homes[ref.segment]
        if self.fenced:
            return  # freed when the streams are known to have ended
        if self.is_dead(copy.seal.version):
            self.arrival_failed(ref)
            return
        shelf.seal(ref, copy)
        stored = Stored(
            generation=self.generation,
            rank=shelf.rank,
            version=copy.seal.version,
            bytes_received=bytes_received,
        )
        self._out.append(ToCoordinator(message=stored))

    def arrival_failed(self, ref: SlotRef) -> None:
        shelf = self._homes.get(ref.segment)
        if shelf is not None and shelf.slots[ref].state is SlotState.ARRIVING and not self.fenced:
            shelf.free(shelf.slots[ref])
            self._serve_waiting()

    # --- for newcomers -----------------------------------------------------------------------------------------------

    def fetch(self, rank: int, fetch: Fetch) -> None:
        geometry = fetch.copy.geometry
        shelf = self.own.setdefault(rank, Shelf(rank))
        self.geometry.setdefault(rank, geometry)  # until the trainer declares it
        self.peers.setdefault(rank, fetch.copy.peers)
        self._make_room(shelf, geometry)
        slot = shelf.take(geometry, SlotState.ARRIVING)
        if slot is None:
            self._fetches.append((rank, fetch))
            return
        self._fetching[slot.ref] = fetch.copy.seal
        self._out.append(FetchCopy(slot=slot.ref, rank=rank, fetch=fetch, generation=self.generation))

    def fetched(self, ref: SlotRef, copy: Copy) -> bool:
        """The rank's own seal came with the bytes and both were verified, so this node now has it at home."""
        self._fetching.pop(ref, None)
        if self.fenced:
            return False
        if self.is_dead(copy.seal.version):
            self.arrival_failed(ref)
            return True
        full = replace(copy, seal=replace(copy.seal, full=True))
        self._seal(self._homes[ref.segment], ref, full)
        self.send_next()
        return True

    def fetch_failed(self, ref: SlotRef) -> bool:
        """Whether it matters: the sources of a version that the permit has passed may well be gone."""
        seal = self._fetching.pop(ref, None)
        self.arrival_failed(ref)
        return not self.fenced and seal is not None and not self.is_dead(seal.version)

    def find_arriving(self, rank: int, version: Version) -> tuple[SlotRef, Seal] | None:
        """Where a snapshot of an own rank is being fetched into."""
        coming = self._fetching.items()
        return next(((ref, seal) for ref, seal in coming if (seal.rank, seal.version) == (rank, version)), None)

    def use_geometry_of(self, ref: SlotRef) -> None:
        """A trainer that loads a snapshot has state of its geometry from then on, until it declares another."""
        shelf = self._homes[ref.segment]
        self.geometry[shelf.rank] = shelf.slots[ref].geometry

    def find_own(self, rank: int, version: Version) -> SlotRef | None:
        slot = self.own[rank].find(version) if rank in self.own else None
        return slot.ref if slot else None

    def _shelves(self) -> Iterator[Shelf]:
        yield from self.own.values()
        yield from self.held.values()
