"""The parity that a node keeps for its coding groups: what other members contribute to it, and when it is whole.

Each own rank of the node is in a group, and the node keeps one parity per group and version. Other members offer their
pieces; the data plane checks each piece and folds it in. Only when all of them are in is the parity hashed, sealed and
reported (rule 27, parity counts when it is whole). A fence drops what is not whole.

A slot has room for snapshots as large as those that were offered last. Where one has grown meanwhile, the parity is
begun anew, and the coordinator asks the others to send their pieces again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from deadpool.protocol.agent.copies.joint import JointCopies
from deadpool.protocol.agent.copies.slots import RankSlots, Slots, SlotState
from deadpool.protocol.agent.phase import GenerationState
from deadpool.protocol.causes import Refusal
from deadpool.protocol.effects import (
    AcceptOffer,
    AgentEffect,
    HashSlot,
    JointTarget,
    ToCoordinator,
    WriteSeal,
)
from deadpool.protocol.features.coding.stripes import Stripes, parity_layout
from deadpool.protocol.identity import Generation, Layout, Version
from deadpool.protocol.inputs import Offered
from deadpool.protocol.messages import Copy, CopyLost, Encoded, JointCopy, NodeCopies, Plan, SlotRef
from deadpool.protocol.schemes import Keeper, RankGroup
from deadpool.protocol.seal import Digest, Geometry, Seal, capacity_extent


@dataclass(slots=True)
class Accumulation:
    """A parity that is not whole yet."""

    generation: Generation
    target: JointTarget
    copies: dict[int, Copy] = field(default_factory=dict)  # by rank: whose pieces are in
    writers: set[int] = field(default_factory=set)  # ranks whose pieces are being folded in
    bytes_received: int = 0
    begun: bool = False  # some contribution was accepted
    outgrown: bool = False  # to be freed as soon as nothing writes to it

    @property
    def version(self) -> Version:
        return self.target.version

    @property
    def is_whole(self) -> bool:
        return len(self.copies) == self.target.group.size - 1


class Parities(JointCopies):
    def __init__(self, current: GenerationState, slots: Slots, out: list[AgentEffect]) -> None:
        super().__init__(current, slots, out)
        self._node = ""
        self._keepers: dict[int, Keeper] = {}  # by the rank of another member
        self._geometry: dict[int, Geometry] = {}  # of each of these: the last offered, or a larger one since
        self._growing: dict[SlotRef, Accumulation] = {}
        self._offers: list[Offered] = []  # wait for a segment

    # --- plan, fence, permit ------------------------------------------------------------------------------------------

    def adopt(self, plan: Plan, layout: Layout, node: str) -> None:
        self._node = node
        self._keepers = dict(_keepers(plan, layout))
        self._slots.keep_joint(set(self._keepers.values()))

    def fence(self) -> None:
        for offer in self._offers:
            self._refuse(offer, Refusal.FENCED)
        self._offers.clear()

    def on_streams_cut(self) -> None:
        """Slots that were written to are free by now. One that is being hashed is not, and is freed after that."""
        self._growing = {ref: each for ref, each in self._growing.items() if self._state(ref) is SlotState.HASHING}

    def _state(self, ref: SlotRef) -> SlotState | None:
        return self._slots.rank_slots_of(ref).by_ref[ref].state if self._slots.knows(ref) else None

    def on_permit(self) -> None:
        """The permit has passed a version that some rank has missed: its parity will never be whole."""
        for ref, growing in list(self._growing.items()):
            if self._slots.is_expired(growing.version) and self._state(ref) is SlotState.ARRIVING:
                growing.outgrown = True
                self._free_if_unwritten(ref, growing)

    def serve_waiting(self) -> None:
        offers, self._offers = self._offers, []
        for offer in offers:
            self.on_offered(offer)

    def refuse_waiting(self, keeper: int, reason: str) -> None:
        """The segment that these offers waited for could not be allocated."""
        refused = [offer for offer in self._offers if self._keeper_rank(offer.copy.seal.rank) == keeper]
        self._offers = [offer for offer in self._offers if offer not in refused]
        for offer in refused:
            self._refuse(offer, Refusal.NO_MEMORY, reason)

    def _keeper_rank(self, rank: int) -> int | None:
        keeper = self._keepers.get(rank)
        return keeper[0].ranks[keeper[1]] if keeper is not None else None

    # --- contributions ------------------------------------------------------------------------------------------------

    def on_offered(self, offer: Offered) -> None:
        rank, version = offer.copy.seal.rank, offer.copy.seal.version
        keeper = self._keepers.get(rank)
        if self._current.is_fenced or offer.generation != self._current.generation:
            self._refuse(offer, Refusal.OTHER_GENERATION)
        elif keeper is None or offer.group != keeper[0]:
            self._refuse(offer, Refusal.OTHER_GROUP)
        elif self._slots.is_expired(version):
            self._refuse(offer, Refusal.EXPIRED)
        elif self._has(keeper, rank, version):
            self._refuse(offer, Refusal.ALREADY_STORED)
        else:
            self._note_geometry(rank, offer.copy.geometry, keeper)
            self._accept(offer, keeper)

    def _note_geometry(self, rank: int, offered: Geometry, keeper: Keeper) -> None:
        """Where a snapshot has grown, those of the other members will have grown as well. They offer what they have, so
        from the next version on the room is right for all of them, whoever offers first."""
        before, (group, member) = self._geometry.get(rank), keeper
        self._geometry[rank] = offered
        if before is not None and _larger(before, offered) != before:
            for other in (group.ranks[other] for other in group.others(member)):
                if other in self._geometry:
                    self._geometry[other] = _larger(self._geometry[other], offered)

    def _has(self, keeper: Keeper, rank: int, version: Version) -> bool:
        sealed = self._slots.joint_of(keeper).find(version)
        growing = self._find(keeper, version)
        return sealed is not None or (growing is not None and rank in growing[1].copies)

    def _find(self, keeper: Keeper, version: Version) -> tuple[SlotRef, Accumulation] | None:
        wanted = (*keeper, version)
        all_growing = self._growing.items()
        return next(((r, g) for r, g in all_growing if (g.target.group, g.target.member, g.version) == wanted), None)

    def _accept(self, offer: Offered, keeper: Keeper) -> None:
        rank, version = offer.copy.seal.rank, offer.copy.seal.version
        found = self._find(keeper, version) or self._begin(offer, keeper)
        if found is None:
            return
        ref, growing = found
        if growing.outgrown or rank in growing.writers:
            self._refuse(offer, Refusal.NO_ROOM)
        elif not _fits(offer.copy.geometry, rank, growing.target):
            growing.outgrown = True
            self._refuse(offer, Refusal.NO_ROOM)
            self._free_if_unwritten(ref, growing)
        else:
            growing.writers.add(rank)
            fresh, growing.begun = not growing.begun, True
            self._out.append(AcceptOffer(offer=offer.offer, slot=ref, joint=growing.target, rank=rank, fresh=fresh))

    def _begin(self, offer: Offered, keeper: Keeper) -> tuple[SlotRef, Accumulation] | None:
        """None: the offer waits for a segment, or was refused."""
        target = self._target(keeper, offer.copy)
        geometry = parity_layout(target.group, target.member, target.geometries).geometry
        rank_slots = self._slots.joint_of(keeper)
        self._slots.joint_geometry[keeper] = geometry
        self._slots.ensure_segment(rank_slots, geometry)
        if not rank_slots.has_geometry(geometry):
            self._offers.append(offer)
            return None
        slot = rank_slots.take(geometry, SlotState.ARRIVING)
        if slot is None:
            self._refuse(offer, Refusal.NO_ROOM)
            return None
        growing = Accumulation(self._current.generation, target)
        self._growing[slot.ref] = growing
        return slot.ref, growing

    def _target(self, keeper: Keeper, copy: Copy) -> JointTarget:
        """Room for each member's snapshot; where none is known of it, for one as is offered now."""
        group, member = keeper
        ranks = (group.ranks[other] for other in group.others(member))
        geometries = tuple(self._geometry.get(rank, copy.geometry) for rank in ranks)
        return JointTarget(group=group, member=member, version=copy.seal.version, geometries=geometries)

    def knows(self, ref: SlotRef) -> bool:
        return ref in self._growing

    def on_received(self, ref: SlotRef, copy: Copy, bytes_received: int) -> None:
        growing, slot = self._growing[ref], self._slots.rank_slots_of(ref).by_ref[ref]
        growing.writers.discard(copy.seal.rank)
        growing.copies[copy.seal.rank] = copy
        growing.bytes_received += bytes_received
        if growing.is_whole and not growing.outgrown and not self._current.is_fenced:
            slot.state = SlotState.HASHING
            self._out.append(HashSlot(slot=ref, geometry=slot.geometry, record_bytes=0))
        self._free_if_unwritten(ref, growing)

    def on_failed(self, ref: SlotRef, rank: int) -> None:
        """A contribution has ended early. What is folded in of it stays: its sender goes on where it stopped."""
        growing = self._growing[ref]
        growing.writers.discard(rank)
        self._free_if_unwritten(ref, growing)

    def _free_if_unwritten(self, ref: SlotRef, growing: Accumulation) -> None:
        """Frees the slot of a parity that is given up, once nobody writes into it. Under a fence the slot is freed when
        all streams are cut. What was sent to the parity, and is still needed, is sent again."""
        if not growing.outgrown or growing.writers or self._current.is_fenced:
            return
        del self._growing[ref]
        rank_slots = self._slots.rank_slots_of(ref)
        rank_slots.free(rank_slots.by_ref[ref])
        if not self._slots.is_expired(growing.version):
            generation, version = self._current.generation, growing.version
            group, rank = growing.target.group, growing.target.group.ranks[growing.target.member]
            begun_anew = CopyLost(generation=generation, node=self._node, rank=rank, version=version, group=group)
            self._out.append(ToCoordinator(message=replace(begun_anew, dropped=True)))
        self.serve_waiting()

    # --- whole --------------------------------------------------------------------------------------------------------

    def on_hashed(self, ref: SlotRef, digest: Digest) -> None:
        growing, rank_slots = self._growing.pop(ref), self._slots.rank_slots_of(ref)
        stale = self._current.is_fenced or growing.generation != self._current.generation
        if stale or self._slots.is_expired(growing.version):
            rank_slots.free(rank_slots.by_ref[ref])
            return
        target = growing.target
        parity = JointCopy(
            group=target.group,
            member=target.member,
            version=growing.version,
            digest=digest.unique,
            copies=NodeCopies.of(growing.copies.values()),
        )
        self._seal(rank_slots, ref, parity)
        ranks, generation = tuple(sorted(growing.copies)), self._current.generation
        encoded = Encoded(
            generation=generation, version=growing.version, ranks=ranks, bytes_received=growing.bytes_received
        )
        self._out.append(ToCoordinator(message=encoded))

    def _seal(self, rank_slots: RankSlots, ref: SlotRef, parity: JointCopy) -> None:
        slot = rank_slots.by_ref[ref]
        digest = Digest(record=0, unique=parity.digest, replica=0)
        extent = capacity_extent(slot.geometry)
        seal = Seal(rank=parity.keeper, version=parity.version, extent=extent, digest=digest, full=True)
        copy = Copy(seal=seal, geometry=slot.geometry)
        rank_slots.seal(ref, copy)
        slot.joint = parity
        self._out.append(WriteSeal(slot=ref, copy=copy))

    def drop_damaged(self, group: RankGroup, keeper: int, version: Version) -> None:
        member = group.member_of(keeper)
        if (slot := self._slots.find_joint(group, member, version)) is not None:
            self._slots.joint_of((group, member)).free(slot)


def _keepers(plan: Plan, layout: Layout) -> Iterable[tuple[int, Keeper]]:
    """Yields, for every rank that sends pieces to this node, the group and the member that this node is in it."""
    for order in plan.orders if plan.group is not None else ():
        assert plan.group is not None
        group = plan.group.of(order.rank, layout)
        keeper = (group, group.member_of(order.rank))
        for rank in group.ranks:
            if rank != order.rank:
                yield rank, keeper


def _larger(one: Geometry, other: Geometry) -> Geometry:
    return replace(
        one,
        record_capacity=max(one.record_capacity, other.record_capacity),
        unique_bytes=max(one.unique_bytes, other.unique_bytes),
        replica_bytes=max(one.replica_bytes, other.replica_bytes),
    )


def _fits(geometry: Geometry, rank: int, target: JointTarget) -> bool:
    """Whether every piece that this member may send has a row that is long enough."""
    group, member = target.group, target.member
    layout = parity_layout(group, member, target.geometries)
    pieces = Stripes(group).pieces_for(group.member_of(rank), member, geometry, capacity_extent(geometry))
    return all(place in layout.at and piece.size <= layout.at[place].size for place, piece in pieces)
