"""A node's slots and the memory they lie in: one shelf per rank and role, own or held.

Slots come by the segment, all of one geometry. Where a rank's state has changed its size, or its copies lie elsewhere
by now, segments are given back once nothing in them is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from deadpool.protocol.agent.rank_slots import Shelf, SlotState
from deadpool.protocol.effects import AgentEffect, Allocate, ReleaseSegment
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Copy, Inventory, Live, Permit, Plan, SlotRef
from deadpool.protocol.permits import may_overwrite
from deadpool.protocol.seal import Geometry


class Shelves:
    def __init__(self, out: list[AgentEffect]) -> None:
        self._out = out
        self.slots_per_shelf = 0
        self.permit: Permit | None = None
        self.own: dict[int, Shelf] = {}
        self.held: dict[int, Shelf] = {}
        self.geometry: dict[int, Geometry] = {}  # of each own rank's state, as last declared or fetched
        self.held_geometry: dict[int, Geometry] = {}  # of the latest offer
        self._holds: frozenset[int] = frozenset()  # ranks whose copies the placement sends here
        self._segments = 0
        self._homes: dict[int, Shelf] = {}  # segment -> shelf
        self._making: dict[int, tuple[Shelf, Geometry]] = {}

    # --- what is there -----------------------------------------------------------------------------------------------

    def all(self) -> Iterator[Shelf]:
        yield from self.own.values()
        yield from self.held.values()

    def of(self, rank: int) -> list[Shelf]:
        """Own before held."""
        return [shelves[rank] for shelves in (self.own, self.held) if rank in shelves]

    def own_of(self, rank: int) -> Shelf:
        return self.own.setdefault(rank, Shelf(rank))

    def held_of(self, rank: int) -> Shelf:
        return self.held.setdefault(rank, Shelf(rank))

    def home_of(self, ref: SlotRef) -> Shelf:
        return self._homes[ref.segment]

    def knows(self, ref: SlotRef) -> bool:
        """Its segment has not been given back."""
        return ref.segment in self._homes

    def is_quiet(self) -> bool:
        slots = (slot for shelf in self.all() for slot in shelf.slots.values())
        return all(slot.state in (SlotState.FREE, SlotState.SEALED, SlotState.GRANTED) for slot in slots)

    def inventory(self, live: tuple[Live, ...]) -> Inventory:
        return Inventory(
            live=live,
            own=tuple(slot.copy for shelf in self.own.values() for slot in shelf.sealed() if slot.copy),
            held=tuple(slot.copy for shelf in self.held.values() for slot in shelf.sealed() if slot.copy),
        )

    def copies_of(self, version: Version, ranks: tuple[int, ...]) -> tuple[tuple[SlotRef, Copy], ...]:
        """Of each rank the one with the most in it."""
        found = []
        for rank in ranks:
            slots = [shelf.find(version) for shelf in self.of(rank)]
            there = [(slot.ref, slot.copy) for slot in slots if slot is not None and slot.copy is not None]
            found += sorted(there, key=lambda home: not home[1].seal.full)[:1]
        return tuple(found)

    # --- what may go -------------------------------------------------------------------------------------------------

    def is_dead(self, version: Version) -> bool:
        """The permit has passed it: nobody will go back to it."""
        return self.permit is not None and may_overwrite(version, self.permit)

    def obey(self, permit: Permit) -> None:
        self.permit = permit
        for shelf in self.all():
            shelf.obey(permit)

    def adopt(self, plan: Plan) -> None:
        self.permit, self._holds = plan.permit, frozenset(plan.held)
        for shelf in self.all():
            if plan.resume is None:
                shelf.free_all_in(SlotState.SEALED)
            else:
                shelf.drop_above(plan.resume)
            shelf.obey(plan.permit)
        for order in plan.orders:
            self.own_of(order.rank)
        self._give_up_reservations({order.rank for order in plan.orders})

    def spoil(self, rank: int, version: Version) -> None:
        """A copy is not as it was sealed: it is none."""
        for shelf in self.of(rank):
            if (slot := shelf.find(version)) is not None:
                shelf.free(slot)

    def streams_ended(self) -> None:
        for shelf in self.all():
            shelf.free_all_in(SlotState.ARRIVING)
            shelf.end_reading()

    # --- room --------------------------------------------------------------------------------------------------------

    def make_room(self, shelf: Shelf, geometry: Geometry) -> None:
        being_made = any(s is shelf and g == geometry for s, g in self._making.values())
        if shelf.has_room_for(geometry) or being_made:
            return
        self._segments += 1
        self._making[self._segments] = (shelf, geometry)
        self._out.append(Allocate(segment=self._segments, geometry=geometry, count=self.slots_per_shelf))

    def make_missing_room(self) -> None:
        """An allocation may have failed."""
        for rank, shelf in self.own.items():
            if (geometry := self.geometry.get(rank)) is not None:
                self.make_room(shelf, geometry)

    def allocated(self, segment: int) -> None:
        shelf, geometry = self._making.pop(segment)
        shelf.add(segment, geometry, self.slots_per_shelf)
        self._homes[segment] = shelf

    def allocation_failed(self, segment: int) -> Shelf:
        """Whose it would have been."""
        return self._making.pop(segment)[0]

    def release_outgrown(self) -> None:
        own = [(shelf, self.geometry.get(rank)) for rank, shelf in self.own.items()]
        held = [(shelf, self.held_geometry.get(rank)) for rank, shelf in self.held.items()]
        for shelf, geometry in own + held:
            for segment in list(shelf.outgrown(geometry)) if geometry else ():
                self._release(segment)

    def _give_up_reservations(self, seated: set[int]) -> None:
        """Of ranks that others have taken, once this node has ranks of its own."""
        for rank in [rank for rank in self.own if rank not in seated] if seated else []:
            self._give_up_if_empty(self.own[rank])

    def give_up_former_ranks(self) -> None:
        """Of ranks whose copies go elsewhere by now. Rule 17, placement by seat: an ex-holder keeps the floor until a
        permit frees it."""
        for rank in [rank for rank in self.held if rank not in self._holds]:
            self._give_up_if_empty(self.held[rank])

    def _give_up_if_empty(self, shelf: Shelf) -> None:
        if all(slot.state is SlotState.FREE for slot in shelf.slots.values()):
            for segment in sorted({ref.segment for ref in shelf.slots}):
                self._release(segment)
            shelf.slots.clear()

    def _release(self, segment: int) -> None:
        del self._homes[segment]
        self._out.append(ReleaseSegment(segment=segment))
