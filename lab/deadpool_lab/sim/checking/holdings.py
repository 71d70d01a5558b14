"""What machines really hold, read from their memory and not from what cores say of it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from deadpool.protocol.features.coding.stripes import Stripes
from deadpool.protocol.identity import Version
from deadpool.protocol.schemes import NodeGroup, RankGroup
from deadpool_lab.sim.arena import ParityContent

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.world import World

RankCopy = tuple[int, Version]
"""The copy of one rank."""


class Holdings:
    def __init__(self, world: World) -> None:
        self._world = world

    def intact_copies(self, node: str) -> list[RankCopy]:
        """Sealed copies that are still as they were sealed."""
        machine = self._world.machine_at(node)
        sealed = machine.arena.sealed.items() if machine.alive else ()
        return [copy for slot, copy in sealed if slot not in machine.arena.damaged]

    def is_intact_at_home(self, machine: Machine, rank: int, version: Version) -> bool:
        """A node may have held copies of a rank before it became its home: those do not count."""
        own = machine.agent.copies.own.get(rank)
        slot = own.find(version) if own is not None else None
        sealed = machine.arena.sealed.get(slot.ref) if slot is not None and machine.alive else None
        return slot is not None and sealed == (rank, version) and slot.ref not in machine.arena.damaged

    def offered_copies(self, node: str) -> list[RankCopy]:
        """The copies that the node would report in an inventory."""
        machine = self._world.machine_at(node)
        inventory = machine.agent.copies.inventory(())
        copies = [(c.seal.rank, c.seal.version) for c in (*inventory.own, *inventory.held)]
        parities = [(parity.keeper, parity.version) for parity in inventory.joint]
        return copies + parities if machine.alive else []

    def all_seats_are_alive(self) -> bool:
        return all(self._world.machine_at(node).alive for node in self._world.coordinator.seats)

    def some_seat_is_lost(self) -> bool:
        """A seat may be cut off for ever without being missed yet: then the next loss is the second one."""
        return any(self._world.machine_at(node).is_lost for node in self._world.coordinator.seats)

    def is_damaged(self, version: Version) -> bool:
        """Some copy of it is: then one loss may be one too many."""
        arenas = [self._world.machine_at(node).arena for node in self._world.coordinator.seats]
        return any(
            sealed.get(slot, (0, None))[1] == version
            for arena in arenas
            for slot in arena.damaged
            for sealed in (arena.sealed, arena.parities)
        )

    def first_missing_copy(self, version: Version) -> str:
        """The first copy of a version that is not where it should be, or "". A dead machine is not expected to hold
        anything, whether its death was noticed or not."""
        layout, seats = self._world.layout, self._world.coordinator.seats
        placement = self._world.coordinator.commits.placement
        for rank in range(layout.world_size):
            home = layout.position_of(rank)
            for position in (home, *placement.of(home)):
                machine = self._world.machine_at(seats[position])
                coded = position != home and placement.group_of(home) is not None
                has = self._has_in_parity if coded else self._has
                if machine.alive and not has(machine, rank, version):
                    return f"the {'pieces' if coded else 'copy'} of rank {rank} at {machine.name}"
        return ""

    def first_undecodable(self, version: Version) -> str:
        """Rule 27 (parity counts when it is whole): the first rank that could not be rebuilt if as many nodes of its
        group were lost as the scheme allows, or "". Dead machines count among the losses already."""
        layout = self._world.layout
        for nodes in self._world.coordinator.commits.placement.groups:
            dead = {m for m, position in enumerate(nodes.positions) if not self._machine(position).alive}
            for group in [nodes.of(rank, layout) for rank in layout.ranks_at(nodes.positions[0])]:
                data, parity = self._blocks(nodes, group, version)
                for lost in map(set, itertools.combinations(range(group.size), group.parities)):
                    for member in lost if dead <= lost else ():
                        if not Stripes(group).can_rebuild(member, data - lost, parity - lost):
                            return f"rank {group.ranks[member]} after the loss of members {sorted(lost)} of {nodes}"
        return ""

    def first_shard_at_one_node(self, version: Version) -> str:
        """Rule 30 (carried ranks): the bytes of each shard are on several nodes, although several ranks may have one
        home. Where a node has died unnoticed, one is enough. "" if all is well."""
        history = self._world.history
        machines = {node: self._world.machine_at(node) for node in self._world.coordinator.seats}
        for shard in range(history.shards):
            truth = history.state(version, shard).replica
            nodes = [name for name, machine in machines.items() if self._has_shard(machine, shard, version, truth)]
            if len(nodes) + sum(not machine.alive for machine in machines.values()) < 2:
                return f"the bytes of shard {shard} are on {nodes} only"
        return ""

    def _has_shard(self, machine: Machine, shard: int, version: Version, truth: int, *, intact: bool = False) -> bool:
        sealed = machine.arena.sealed.items() if machine.alive else ()
        damaged = machine.arena.damaged if intact else ()
        copies = [(slot, rank) for slot, (rank, v) in sealed if v == version and slot not in damaged]
        slots = [slot for slot, rank in copies if self._world.history.shard_of(rank) == shard]
        return any(found is not None and found.replica == truth for found in map(machine.arena.snapshot, slots))

    def where_in_parts(self, rank: int, version: Version, nodes: list[str]) -> str:
        """Where the record of a rank is, and the bytes of its shard. "" if one of them is nowhere."""
        history, shard = self._world.history, self._world.history.shard_of(rank)
        truth = history.state(version, rank)
        records = [node for node in nodes if (rank, version) in self.intact_copies(node)]
        tensors = [
            node
            for node in nodes
            if shard is not None
            and self._has_shard(self._world.machine_at(node), shard, version, truth.replica, intact=True)
        ]
        return f"its record on {records}, its tensors on {tensors}" if records and tensors else ""

    def where_intact(self, rank: int, version: Version) -> str:
        """Where members have what this rank needs. "" if they have not."""
        nodes = [node for node in self._world.coordinator.members if (rank, version) in self.intact_copies(node)]
        if nodes:
            return f"on {nodes}"
        seated = bool(self._world.coordinator.seats)
        return "to be rebuilt from what its group has" if seated and self.can_rebuild(rank, version) else ""

    def can_rebuild(self, rank: int, version: Version) -> bool:
        """From what the other nodes of its group really hold, undamaged. A node that is no member, such as one that is
        cut off for ever, cannot be asked."""
        layout, coordinator = self._world.layout, self._world.coordinator
        nodes = coordinator.commits.placement.group_of(layout.position_of(rank))
        if nodes is None:
            return False
        group = nodes.of(rank, layout)
        data, parity = self._blocks(nodes, group, version, intact=True)
        seats = enumerate(coordinator.seats[position] for position in nodes.positions)
        away = {group.member_of(rank), *(member for member, node in seats if node not in coordinator.members)}
        return Stripes(group).can_rebuild(group.member_of(rank), data - away, parity - away)

    def _blocks(
        self, nodes: NodeGroup, group: RankGroup, version: Version, *, intact: bool = False
    ) -> tuple[set[int], set[int]]:
        """Members whose own snapshot is there, and members whose parity holds all others."""
        data, parity = set(), set()
        for member, machine in enumerate(map(self._machine, nodes.positions)):
            if machine.alive:
                others = [group.ranks[other] for other in group.others(member)]
                data |= {member} if self._has(machine, group.ranks[member], version, intact=intact) else set()
                if all(self._has_in_parity(machine, rank, version, intact=intact) for rank in others):
                    parity.add(member)
        return data, parity

    def _machine(self, position: int) -> Machine:
        return self._world.machine_at(self._world.coordinator.seats[position])

    def _has_in_parity(self, machine: Machine, rank: int, version: Version, *, intact: bool = False) -> bool:
        """Tells whether the state of the rank is in a sealed parity that holds its true bytes."""
        truth = self._world.history.state(version, rank)
        for slot, (_, sealed) in machine.arena.parities.items():
            content, damaged = machine.arena.contents.get(slot), slot in machine.arena.damaged
            part = content.parts.get(rank) if isinstance(content, ParityContent) and sealed == version else None
            if part is not None and part.unique == truth.unique:
                return not (damaged and intact)
        return False

    def _has(self, machine: Machine, rank: int, version: Version, *, intact: bool = False) -> bool:
        """Whole, and the rank's true state. Garbage is never committed, since some rank has no seal of it."""
        truth = self._world.history.state(version, rank)
        for slot, sealed in machine.arena.sealed.items():
            if sealed == (rank, version):
                content = machine.arena.snapshot(slot)
                damaged = slot in machine.arena.damaged
                is_true = content is not None and (content.unique, content.course) == (truth.unique, truth.course)
                return content is not None and (damaged or is_true) and not (damaged and intact)
        return False
