"""The memory of simulated machines: what each slot contains, which writer it has, and which copies must not be lost.

A slot contains a snapshot, or the parity of several. A parity is no bytes here: it is the snapshots that were folded
into it. Decoding gives a rank's snapshot if enough blocks of each stripe are there and the others are what was folded
in; else it gives something that never was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from deadpool.protocol.effects import FetchCopy
from deadpool.protocol.features.coding.stripes import Stripes
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Block, JointCopy, Permit, Plan, SlotRef
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Digest, Geometry
from deadpool_lab.sim.checking.history import State

if TYPE_CHECKING:
    from deadpool_lab.sim.checking.recovery_checkers import CopyCheckers
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.world import World


@dataclass(frozen=True, slots=True)
class Content:
    """A whole snapshot. `replica` is None where that region was not sent to this node."""

    rank: int
    version: Version
    unique: int
    replica: int | None
    course: int  # the data that the rank has seen, which its record holds

    def digest(self) -> Digest:
        return Digest(record=self.course, unique=self.unique, replica=self.replica or 0)

    def damaged(self) -> Content:
        """A bit has flipped: in the record, if there is nothing else that only this rank has."""
        return replace(self, unique=self.unique ^ 1) if self.unique else replace(self, course=self.course ^ 1)


def content_of(rank: int, version: Version, state: State) -> Content:
    return Content(rank, version, state.unique, state.replica, state.course)


@dataclass(frozen=True, slots=True)
class ParityContent:
    """`rank` is the one under which its node keeps it."""

    group: RankGroup
    member: int
    version: Version
    parts: dict[int, Content] = field(default_factory=dict)  # by rank
    flipped: bool = False

    @property
    def rank(self) -> int:
        return self.group.ranks[self.member]

    def with_part(self, content: Content) -> ParityContent:
        return replace(self, parts={**self.parts, content.rank: content})

    def damaged(self) -> ParityContent:
        return replace(self, flipped=not self.flipped)

    def digest(self) -> Digest:
        """Equal for equal parts, so that damage shows."""
        parts = tuple((rank, part.unique, part.replica, part.course) for rank, part in sorted(self.parts.items()))
        return Digest(record=0, unique=abs(hash((parts, self.flipped))) % 2**63, replica=0)


@dataclass(slots=True)
class Blocks:
    """Blocks of a coding group that a newcomer could read, and those that it found damaged."""

    data: dict[int, Content] = field(default_factory=dict)  # by member
    parity: dict[int, ParityContent] = field(default_factory=dict)
    damaged: list[tuple[Block, bool]] = field(default_factory=list)  # whether it is a parity


def read_blocks(world: World, target: Machine, effect: FetchCopy, generation: Generation) -> Blocks:
    """Each block is checked against its own seal. One whose node does not answer is left out."""
    rebuild, blocks = effect.fetch.rebuild, Blocks()
    assert rebuild is not None
    version = effect.fetch.copy.seal.version
    for block in rebuild.data:
        content = _own_content(_reachable(world, target, block, generation), block.source.rank, version)
        if content is not None and block.copy is not None:
            if is_as_sealed(content.digest(), block.copy.seal.digest):
                blocks.data[block.member] = content
            else:
                blocks.damaged.append((block, False))
    for block in rebuild.joint:
        keeper = _reachable(world, target, block, generation)
        found = _parity_content(keeper, rebuild.group, block.member, version) if keeper is not None else None
        if found is not None:
            kept, sealed = found
            if is_as_sealed(kept.digest(), Digest(record=0, unique=sealed.digest, replica=0)):
                blocks.parity[block.member] = kept
            else:
                blocks.damaged.append((block, True))
    return blocks


def is_as_sealed(found: Digest, sealed: Digest) -> bool:
    return (found.record, found.unique) == (sealed.record, sealed.unique)


def decode(effect: FetchCopy, blocks: Blocks) -> Content | None:
    """None: too few blocks are left."""
    rebuild = effect.fetch.rebuild
    assert rebuild is not None
    group, rank = rebuild.group, effect.fetch.copy.seal.rank
    if not Stripes(group).can_rebuild(rebuild.member, blocks.data, blocks.parity):
        return None
    parity = next(iter(blocks.parity.values()))
    wrong = parity.flipped or any(
        other.flipped or other.parts[group.ranks[member]].unique != content.unique
        for other in blocks.parity.values()
        for member, content in blocks.data.items()
        if group.ranks[member] in other.parts
    )
    found = parity.parts[rank]
    return replace(found, unique=found.unique ^ 1) if wrong else found


def _reachable(world: World, target: Machine, block: Block, generation: Generation) -> Machine | None:
    machine = world.incarnations.get(block.source.address.host)
    if machine is None or not machine.alive or machine.is_paused or machine.oldest_admitted > generation:
        return None
    return None if world.network.is_severed(machine.name, target.name) else machine


def _own_content(machine: Machine | None, rank: int, version: Version) -> Content | None:
    if machine is None:
        return None
    copies = machine.agent.copies
    places = (copies.own.get(rank), copies.held.get(rank))
    slot = next((found for rank_slots in places if rank_slots and (found := rank_slots.find(version))), None)
    return machine.arena.snapshot(slot.ref) if slot else None


def _parity_content(
    machine: Machine, group: RankGroup, member: int, version: Version
) -> tuple[ParityContent, JointCopy] | None:
    """None also where the node gives a parity of another group, which a reader refuses."""
    slot = machine.agent.copies.find_joint(group, member, version)
    content = machine.arena.contents.get(slot.ref) if slot is not None else None
    if slot is None or slot.joint is None or not isinstance(content, ParityContent):
        return None
    return (content, slot.joint) if (content.group, content.member) == (group, member) else None


class Arena:
    """The twin of the real arena. It reports to the checkers whatever is written or freed."""

    def __init__(self, node: str, checkers: CopyCheckers) -> None:
        self.node, self._checkers = node, checkers
        self.geometry: dict[int, Geometry] = {}
        self.counts: dict[int, int] = {}  # slots by segment
        self.contents: dict[SlotRef, Content | ParityContent] = {}
        self.writers: dict[SlotRef, object] = {}
        self.folding: dict[SlotRef, list[object]] = {}  # what writes to a parity: several at once, piece by piece
        self.sealed: dict[SlotRef, tuple[int, Version]] = {}
        self.parities: dict[SlotRef, tuple[int, Version]] = {}  # sealed ones, by the rank under which they are kept
        self.damaged: set[SlotRef] = set()
        self.permit: Permit | None = None

    @property
    def size_bytes(self) -> int:
        return sum(self.counts[segment] * geometry.slot_bytes for segment, geometry in self.geometry.items())

    def allocate(self, segment: int, geometry: Geometry, count: int) -> None:
        self.geometry[segment], self.counts[segment] = geometry, count

    def begin_write(self, slot: SlotRef, writer: object) -> None:
        assert slot.segment in self.geometry, f"{self.node} writes into {slot}, which is gone"
        assert slot.index < self.counts[slot.segment], f"{self.node} writes into {slot}, which was never there"
        self._checkers.check_one_writer(self.node, slot, self.writers.get(slot) or self.folding.get(slot))
        self._overwrite(slot)
        self.writers[slot] = writer

    def snapshot(self, slot: SlotRef) -> Content | None:
        """What the slot holds of one rank; None: nothing that is whole, or a parity."""
        content = self.contents.get(slot)
        return content if isinstance(content, Content) else None

    def end_write(self, slot: SlotRef, writer: object, content: Content | None) -> None:
        """A writer that ends without content leaves the slot torn."""
        if self.writers.get(slot) is not writer:
            return
        del self.writers[slot]
        if content is not None:
            self.contents[slot] = content

    def _overwrite(self, slot: SlotRef) -> None:
        self._check_given_up(slot)
        self.contents.pop(slot, None)
        self.damaged.discard(slot)

    def _check_given_up(self, slot: SlotRef) -> None:
        for sealed in (self.sealed, self.parities):
            if slot in sealed:
                rank, version = sealed.pop(slot)
                if slot not in self.damaged:
                    self._checkers.check_overwrite(self.node, rank, version, self.permit)

    # --- parities ----------------------------------------------------------------------------------------------------

    def begin_fold(self, slot: SlotRef, writer: object, parity: ParityContent, *, fresh: bool) -> None:
        self._checkers.check_one_writer(self.node, slot, self.writers.get(slot))
        if fresh:
            assert not self.folding.get(slot), f"{self.node} begins {slot} anew while others fold into it"
            self._overwrite(slot)
            self.contents[slot] = parity
        self.folding.setdefault(slot, []).append(writer)

    def end_fold(self, slot: SlotRef, writer: object, content: Content | None) -> None:
        if writer not in self.folding.get(slot, ()):
            return
        self.folding[slot].remove(writer)
        parity = self.contents.get(slot)
        if content is not None and isinstance(parity, ParityContent):
            self.contents[slot] = parity.with_part(content)

    def seal(self, slot: SlotRef, rank: int, version: Version) -> None:
        content = self.contents.get(slot)
        assert content is not None and (content.rank, content.version) == (rank, version), (slot, content, version)
        assert slot not in self.writers, f"{self.node} seals {slot} while it is written"
        assert not self.folding.get(slot), f"{self.node} seals {slot} while others fold into it"
        sealed = self.parities if isinstance(content, ParityContent) else self.sealed
        sealed[slot] = (rank, version)

    def damage(self, slot: SlotRef) -> None:
        self.damaged.add(slot)
        self.contents[slot] = self.contents[slot].damaged()

    def obey(self, order: Permit | Plan, reported: Collection[tuple[int, Version]]) -> None:
        """Follows an order of the coordinator. Copies that a plan dropped need not be kept. Nor need those that the
        permit had passed and the node had not `reported` at the fence, since a plan may go back to such a version
        from live memory."""
        self._checkers.on_permit_obeyed(order if isinstance(order, Permit) else order.permit)
        if isinstance(order, Permit):
            self.permit = order
            return
        for sealed in (self.sealed, self.parities):
            for slot, copy in list(sealed.items()):
                if self._is_passed(copy[1]) and copy not in reported:
                    del sealed[slot]
        self.permit = order.permit
        resume = order.resume
        for sealed in (self.sealed, self.parities):
            for slot, (_, version) in list(sealed.items()):
                other = resume is not None and version.number == resume.number and version != resume
                if resume is None or version.number > resume.number or other:
                    del sealed[slot]

    def _is_passed(self, version: Version) -> bool:
        permit = self.permit
        return permit is not None and version != permit.watermark and version.number < permit.keep_from

    def release(self, segment: int) -> None:
        for slot in [slot for slot in (*self.sealed, *self.parities) if slot.segment == segment]:
            self._check_given_up(slot)
        assert not any(slot.segment == segment for slot in self.writers), f"{self.node} frees a segment that is written"
        self.contents = {slot: content for slot, content in self.contents.items() if slot.segment != segment}
        self.damaged = {slot for slot in self.damaged if slot.segment != segment}
        del self.geometry[segment], self.counts[segment]
