"""A node's copies: how they come to be, from captures of its own ranks and from other nodes.

Captures of own ranks are hashed, sealed, reported and go to their holders (`pushes.py`); offers of other nodes are
given a slot; fetches fill a newcomer's shelf. Where they lie is `slots.py`'s business. Nothing is sealed, sent or
overwritten while fenced.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from deadpool.protocol.agent.pushes import ALREADY_STORED, NO_ROOM, Lane, Pushes
from deadpool.protocol.agent.rank_slots import Shelf, SlotState
from deadpool.protocol.agent.slots import Shelves
from deadpool.protocol.effects import (
    AcceptOffer,
    AgentEffect,
    FetchCopy,
    HashSlot,
    Offered,
    RefuseOffer,
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
    Settings,
    SlotRef,
    Stored,
)
from deadpool.protocol.seal import Digest, Extent, Geometry, Seal


class Storehouse:
    def __init__(self, out: list[AgentEffect]) -> None:
        self._out = out
        self.generation: Generation = NO_GENERATION
        self.fenced = False
        self.running = False
        self._shelves = Shelves(out)
        self._pushes = Pushes(self._shelves, out, is_older_coming=self._is_hashing_older)
        self._peers: dict[int, tuple[int, ...]] = {}
        self._captures: dict[SlotRef, Captured] = {}
        self._offers: list[Offered] = []  # wait for a segment
        self._fetching: dict[SlotRef, Seal] = {}
        self._fetches: list[tuple[int, Fetch]] = []  # wait for a segment or a slot

    def welcomed(self, settings: Settings) -> None:
        self._shelves.slots_per_shelf = settings.slots

    # --- for whoever asks --------------------------------------------------------------------------------------------

    @property
    def own(self) -> dict[int, Shelf]:
        return self._shelves.own

    @property
    def held(self) -> dict[int, Shelf]:
        return self._shelves.held

    @property
    def slots_per_shelf(self) -> int:
        return self._shelves.slots_per_shelf

    @property
    def permit(self) -> Permit | None:
        return self._shelves.permit

    @property
    def holders(self) -> tuple[Holder, ...]:
        return self._pushes.holders

    @property
    def lanes(self) -> dict[tuple[int, str], Lane]:
        return self._pushes.lanes

    def is_dead(self, version: Version) -> bool:
        return self._shelves.is_dead(version)

    def is_quiet(self) -> bool:
        """Nobody writes into a slot, and what is written is sealed."""
        return self._shelves.is_quiet()

    def inventory(self, live: tuple[Live, ...]) -> Inventory:
        return self._shelves.inventory(live)

    def copies_of(self, version: Version, ranks: tuple[int, ...]) -> tuple[tuple[SlotRef, Copy], ...]:
        return self._shelves.copies_of(version, ranks)

    # --- fence, plan, permit -----------------------------------------------------------------------------------------

    def fence(self, generation: Generation) -> None:
        self.generation, self.fenced, self.running = generation, True, False
        self._pushes.fence()
        self._fetches.clear()
        for offer in self._offers:
            self._out.append(RefuseOffer(offer=offer.offer, reason="fenced"))
        self._offers.clear()

    def streams_ended(self) -> None:
        """No stream of an older generation reads or writes a slot any more."""
        self._shelves.streams_ended()
        self._fetching.clear()

    def writer_ended(self, rank: int) -> None:
        """The rank's trainer is at rest or gone: what it had not declared captured is lost."""
        if rank in self.own:
            self.own[rank].free_all_in(SlotState.GRANTED)

    def adopt(self, plan: Plan) -> None:
        self.generation, self.fenced, self.running = plan.generation, False, False
        self._pushes.adopt(plan)
        self._shelves.adopt(plan)

    def go(self, plan: Plan) -> None:
        self.running = True
        self._pushes.go(plan)

    def obey(self, permit: Permit) -> None:
        self._shelves.obey(permit)
        self._serve_waiting()
        self._shelves.release_outgrown()
        self._shelves.give_up_former_ranks()
        self.retry()

    def retry(self) -> None:
        """At every heartbeat and permit: what failed is tried again."""
        if not self.fenced:
            self._shelves.make_missing_room()
        self._pushes.retry()

    # --- damage ------------------------------------------------------------------------------------------------------

    def spoil(self, rank: int, version: Version) -> None:
        """A copy is not as it was sealed: it is none."""
        self._shelves.spoil(rank, version)

    def replenish(self, rank: int, node: str, version: Version) -> None:
        """A holder has lost its copy since the plan: it is sent again."""
        if not self.fenced and rank in self.own:
            self._pushes.replenish(rank, node, version)

    # --- room --------------------------------------------------------------------------------------------------------

    def declare(self, rank: int, geometry: Geometry, peers: tuple[int, ...]) -> None:
        self._shelves.geometry[rank], self._peers[rank] = geometry, peers
        shelf = self._shelves.own_of(rank)
        shelf.give_back(geometry)
        self._shelves.make_room(shelf, geometry)
        self._shelves.release_outgrown()

    def reserve(self, rank: int, geometry: Geometry) -> None:
        """A spare that has rehearsed a rank makes room for its snapshot ahead: making it takes time in a recovery."""
        self._shelves.make_room(self._shelves.own_of(rank), geometry)

    def allocated(self, segment: int) -> None:
        self._shelves.allocated(segment)
        self._serve_waiting()

    def allocation_failed(self, segment: int, reason: str) -> None:
        shelf = self._shelves.allocation_failed(segment)
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

    # --- captures of own ranks ---------------------------------------------------------------------------------------

    def grants(self, rank: int) -> Iterator[SlotRef]:
        """Free slots of the rank's present geometry become its trainer's."""
        shelf, geometry = self.own.get(rank), self._shelves.geometry.get(rank)
        while self.running and shelf and geometry and (slot := shelf.take(geometry, SlotState.GRANTED)):
            yield slot.ref

    def captured(self, rank: int, capture: Captured) -> None:
        slot = self.own[rank].slots.get(capture.slot) if rank in self.own else None
        if slot is None or slot.state is not SlotState.GRANTED:
            reason = "its slot was given back before it was said to be full"
            missed = Missed(generation=self.generation, rank=rank, number=capture.version.number, reason=reason)
            self._out.append(ToCoordinator(message=missed))
            return
        slot.state = SlotState.HASHING
        self._captures[slot.ref] = capture
        self._out.append(HashSlot(slot=slot.ref, geometry=slot.geometry, record_bytes=capture.record_bytes))

    def _is_hashing_older(self, rank: int, version: Version) -> bool:
        return any(
            capture.version.number < version.number and self._shelves.home_of(ref).rank == rank
            for ref, capture in self._captures.items()
        )

    def hashed(self, ref: SlotRef, digest: Digest) -> None:
        shelf, capture = self._shelves.home_of(ref), self._captures.pop(ref)
        slot = shelf.slots[ref]
        stale = self.fenced or capture.generation != self.generation
        if stale or self.is_dead(capture.version):
            shelf.free(slot)
            self._pushes.send_next()
            return
        self._seal(shelf, ref, self._copy(shelf.rank, capture, slot.geometry, digest))
        self._pushes.sealed(shelf.rank, capture.version)

    def _copy(self, rank: int, capture: Captured, geometry: Geometry, digest: Digest) -> Copy:
        extent = Extent(
            record_bytes=capture.record_bytes,
            unique_bytes=geometry.unique_bytes,
            replica_bytes=geometry.replica_bytes,
        )
        seal = Seal(rank=rank, version=capture.version, extent=extent, digest=digest, full=True)
        return Copy(seal=seal, geometry=geometry, peers=self._peers.get(rank, ()))

    def _seal(self, shelf: Shelf, ref: SlotRef, copy: Copy) -> None:
        shelf.seal(ref, copy)
        self._out.append(WriteSeal(slot=ref, copy=copy))
        self._out.append(ToCoordinator(message=Sealed(generation=self.generation, copy=copy)))

    def push_ended(self, rank: int, node: str, version: Version, failure: str | None) -> None:
        self._pushes.ended(rank, node, version, failure)

    # --- from other nodes --------------------------------------------------------------------------------------------

    def offered(self, offer: Offered) -> None:
        if self.fenced or offer.generation != self.generation:
            self._out.append(RefuseOffer(offer=offer.offer, reason="another generation"))
            return
        seal = offer.copy.seal
        shelf = self._shelves.held_of(seal.rank)
        if self.is_dead(seal.version) or shelf.find(seal.version):
            reason = "no longer needed" if self.is_dead(seal.version) else ALREADY_STORED
            self._out.append(RefuseOffer(offer=offer.offer, reason=reason))
            return
        self._accept(offer, shelf)

    def _accept(self, offer: Offered, shelf: Shelf) -> None:
        geometry = offer.copy.geometry if offer.copy.seal.full else offer.copy.geometry.without_replica()
        self._shelves.held_geometry[shelf.rank] = geometry
        self._shelves.make_room(shelf, geometry)
        if not shelf.has_room_for(geometry):
            self._offers.append(offer)
        elif (slot := shelf.take(geometry, SlotState.ARRIVING)) is not None:
            self._out.append(AcceptOffer(offer=offer.offer, slot=slot.ref))
        else:
            self._out.append(RefuseOffer(offer=offer.offer, reason=NO_ROOM))

    def received(self, ref: SlotRef, copy: Copy, bytes_received: int) -> None:
        shelf = self._shelves.home_of(ref)
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
        shelf = self._shelves.home_of(ref) if self._shelves.knows(ref) else None
        if shelf is not None and shelf.slots[ref].state is SlotState.ARRIVING and not self.fenced:
            shelf.free(shelf.slots[ref])
            self._serve_waiting()

    # --- for newcomers -----------------------------------------------------------------------------------------------

    def fetch(self, rank: int, fetch: Fetch) -> None:
        geometry = fetch.copy.geometry
        shelf = self._shelves.own_of(rank)
        self._shelves.geometry.setdefault(rank, geometry)  # until the trainer declares it
        self._peers.setdefault(rank, fetch.copy.peers)
        self._shelves.make_room(shelf, geometry)
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
        self._seal(self._shelves.home_of(ref), ref, full)
        self._pushes.send_next()
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
        shelf = self._shelves.home_of(ref)
        self._shelves.geometry[shelf.rank] = shelf.slots[ref].geometry

    def find_own(self, rank: int, version: Version) -> SlotRef | None:
        slot = self.own[rank].find(version) if rank in self.own else None
        return slot.ref if slot else None
