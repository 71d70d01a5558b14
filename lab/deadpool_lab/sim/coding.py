"""Slots and parities of simulated machines.

`Content` and `ParityContent`: what a slot of a simulated machine contains: a snapshot, or the parity of several.

`Blocks`: Erasure coding in the simulated world: what a parity holds, and what can be decoded from it.

A parity is no bytes here: it is the snapshots that were folded into it. Decoding gives a rank's snapshot if enough
blocks of each stripe are there and the others are what was folded in; else it gives something that never was.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from deadpool.protocol.effects import FetchCopy
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Block, JointCopy
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Digest
from deadpool.protocol.stripes import Stripes
from deadpool_lab.sim.checking.history import State

if TYPE_CHECKING:
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
