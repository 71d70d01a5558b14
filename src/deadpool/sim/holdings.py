"""What machines really hold, read from their memory and not from what cores say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.identity import Version

if TYPE_CHECKING:
    from deadpool.sim.machine import Machine
    from deadpool.sim.world import World

RankCopy = tuple[int, Version]
"""The copy of one rank."""


class Holdings:
    def __init__(self, world: World) -> None:
        self._world = world

    def intact_copies(self, node: str) -> list[RankCopy]:
        """Sealed copies that are still as they were sealed."""
        machine = self._world.machine_at(node)
        sealed = machine.arena.sealed.items() if machine.alive else ()
        return [copy for slot, copy in sealed if slot not in machine.arena.corrupted]

    def offered_copies(self, node: str) -> list[RankCopy]:
        """The copies that the node would report in an inventory."""
        machine = self._world.machine_at(node)
        inventory = machine.agent.store.inventory(())
        return [(c.seal.rank, c.seal.version) for c in (*inventory.own, *inventory.held)] if machine.alive else []

    def all_seats_are_alive(self) -> bool:
        return all(self._world.machine_at(node).alive for node in self._world.coordinator.seats)

    def some_seat_is_lost(self) -> bool:
        """A seat may be cut off for ever without being missed yet: then the next loss is the second one."""
        return any(self._world.machine_at(node).is_lost for node in self._world.coordinator.seats)

    def is_corrupt(self, version: Version) -> bool:
        """Some copy of it is: then one loss may be one too many."""
        arenas = [self._world.machine_at(node).arena for node in self._world.coordinator.seats]
        return any(arena.sealed.get(slot, (0, None))[1] == version for arena in arenas for slot in arena.corrupted)

    def first_missing_copy(self, version: Version) -> str:
        """The first copy of a version that is not where it should be, or "". A dead machine is not expected to hold
        anything, whether its death was noticed or not."""
        layout, seats = self._world.layout, self._world.coordinator.seats
        placement = self._world.coordinator.commits.placement
        for rank in range(layout.world_size):
            home = layout.position_of(rank)
            for position in (home, *placement.of(home)):
                machine = self._world.machine_at(seats[position])
                if machine.alive and not self._has(machine, rank, version):
                    return f"the copy of rank {rank} at {machine.name}"
        return ""

    def _has(self, machine: Machine, rank: int, version: Version) -> bool:
        """Whole, and the rank's true state. Garbage is never committed, since some rank has no seal of it."""
        truth = self._world.history.state(version, rank)
        for slot, sealed in machine.arena.sealed.items():
            if sealed == (rank, version):
                content = machine.arena.contents.get(slot)
                corrupt = slot in machine.arena.corrupted
                return content is not None and (corrupt or content.unique == truth.unique)
        return False
