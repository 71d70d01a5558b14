"""Copies that come to this node: pushes that other nodes offer to a holder, and what a newcomer fetches from holders.

Each needs a slot of the right geometry. What finds none waits here, until a segment is allocated or a slot is freed.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from deadpool.protocol.agent.copies.slots import RankSlots, Slots, SlotState
from deadpool.protocol.agent.phase import GenerationState
from deadpool.protocol.causes import Refusal
from deadpool.protocol.effects import AcceptOffer, AgentEffect, FetchCopy, RefuseOffer, ToCoordinator
from deadpool.protocol.identity import Version
from deadpool.protocol.inputs import Offered
from deadpool.protocol.messages import Copy, Fetch, SlotRef, Stored
from deadpool.protocol.seal import Seal


class Arrivals:
    def __init__(
        self,
        current: GenerationState,
        slots: Slots,
        out: list[AgentEffect],
        *,
        seal: Callable[[RankSlots, SlotRef, Copy], None],
    ) -> None:
        self._current, self._slots, self._out, self._seal = current, slots, out, seal
        self._offers: list[Offered] = []  # wait for a segment
        self._fetching: dict[SlotRef, Seal] = {}
        self._fetches: list[tuple[int, Fetch]] = []  # wait for a segment or a slot

    def fence(self) -> None:
        self._fetches.clear()
        for offer in self._offers:
            self._refuse(offer, Refusal.FENCED)
        self._offers.clear()

    def on_streams_cut(self) -> None:
        self._fetching.clear()

    def serve_waiting(self) -> None:
        offers, self._offers = self._offers, []
        for offer in offers:
            self.on_offered(offer)
        fetches, self._fetches = self._fetches, []
        for rank, fetch in fetches:
            self.fetch(rank, fetch)

    def refuse_waiting(self, rank: int, reason: str) -> None:
        """The segment that these offers waited for could not be allocated."""
        refused = [offer for offer in self._offers if offer.copy.seal.rank == rank]
        self._offers = [offer for offer in self._offers if offer not in refused]
        for offer in refused:
            self._refuse(offer, Refusal.NO_MEMORY, reason)

    def on_failed(self, ref: SlotRef) -> None:
        """A stream into this slot has ended early. Under a fence the slot is freed when all streams are cut."""
        rank_slots = self._slots.rank_slots_of(ref) if self._slots.knows(ref) else None
        if rank_slots is None or self._current.is_fenced:
            return
        if rank_slots.by_ref[ref].state is SlotState.ARRIVING:
            rank_slots.free(rank_slots.by_ref[ref])
            self.serve_waiting()

    # --- as a holder -------------------------------------------------------------------------------------------------

    def on_offered(self, offer: Offered) -> None:
        if self._current.is_fenced or offer.generation != self._current.generation:
            self._refuse(offer, Refusal.OTHER_GENERATION)
            return
        seal = offer.copy.seal
        rank_slots = self._slots.held_of(seal.rank)
        if self._slots.is_expired(seal.version):
            self._refuse(offer, Refusal.EXPIRED)
        elif rank_slots.find(seal.version):
            self._refuse(offer, Refusal.ALREADY_STORED)
        else:
            self._accept(offer, rank_slots)

    def _accept(self, offer: Offered, rank_slots: RankSlots) -> None:
        geometry = offer.copy.geometry if offer.copy.seal.full else offer.copy.geometry.without_replica()
        self._slots.held_geometry[rank_slots.rank] = geometry
        self._slots.ensure_segment(rank_slots, geometry)
        if not rank_slots.has_geometry(geometry):
            self._offers.append(offer)
        elif (slot := rank_slots.take(geometry, SlotState.ARRIVING)) is not None:
            self._out.append(AcceptOffer(offer=offer.offer, slot=slot.ref))
        else:
            self._refuse(offer, Refusal.NO_ROOM)

    def _refuse(self, offer: Offered, refusal: Refusal, reason: str = "") -> None:
        self._out.append(RefuseOffer(offer=offer.offer, refusal=refusal, reason=reason))

    def on_received(self, ref: SlotRef, copy: Copy, bytes_received: int) -> None:
        rank_slots, version = self._slots.rank_slots_of(ref), copy.seal.version
        if self._current.is_fenced:
            return  # freed when all streams are cut
        if self._slots.is_expired(version):
            self.on_failed(ref)
            return
        rank_slots.seal(ref, copy)
        stored = Stored(
            generation=self._current.generation,
            rank=rank_slots.rank,
            version=version,
            bytes_received=bytes_received,
        )
        self._out.append(ToCoordinator(message=stored))

    # --- as a newcomer -----------------------------------------------------------------------------------------------

    def fetch(self, rank: int, fetch: Fetch) -> None:
        geometry = fetch.copy.geometry
        rank_slots = self._slots.own_of(rank)
        self._slots.geometry.setdefault(rank, geometry)  # until the trainer declares it
        self._slots.peers.setdefault(rank, fetch.copy.peers)
        self._slots.ensure_segment(rank_slots, geometry)
        slot = rank_slots.take(geometry, SlotState.ARRIVING)
        if slot is None:
            self._fetches.append((rank, fetch))
            return
        self._fetching[slot.ref] = fetch.copy.seal
        self._out.append(FetchCopy(slot=slot.ref, rank=rank, fetch=fetch, generation=self._current.generation))

    def on_fetched(self, ref: SlotRef, copy: Copy) -> bool:
        """Whether it was sealed. The bytes came with the rank's own seal and were verified against it, so this node has
        the evidence that the rank's former node had."""
        self._fetching.pop(ref, None)
        if self._current.is_fenced:
            return False
        if self._slots.is_expired(copy.seal.version):
            self.on_failed(ref)
            return False
        self._seal(self._slots.rank_slots_of(ref), ref, replace(copy, seal=replace(copy.seal, full=True)))
        return True

    def on_fetch_failed(self, ref: SlotRef) -> Version | None:
        """Returns the version whose fetch failed, if it is still needed: the sources of an expired one may well be
        gone.
        """
        seal = self._fetching.pop(ref, None)
        self.on_failed(ref)
        if self._current.is_fenced or seal is None or self._slots.is_expired(seal.version):
            return None
        return seal.version

    def find(self, rank: int, version: Version) -> tuple[SlotRef, Seal] | None:
        """The slot that a snapshot of an own rank is being fetched into."""
        coming = self._fetching.items()
        return next(((ref, seal) for ref, seal in coming if (seal.rank, seal.version) == (rank, version)), None)
