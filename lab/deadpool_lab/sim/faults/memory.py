"""Bits that flip in a copy after it was sealed. None flips while it is loaded, since that could not be noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool_lab.sim.faults.fault import FaultKind
from deadpool_lab.sim.faults.targets import alive, pick

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


def damage_copy(world: World) -> bool:
    quiet = [machine for machine in alive(world) if not any(p.stage == "loading" for p in machine.processes.values())]
    places = [(machine, slot) for machine in quiet for slot in machine.arena.sealed]
    places += [(machine, slot) for machine in quiet for slot in machine.arena.parities]
    for machine, slot in pick(world, places):
        rank, version = machine.arena.sealed.get(slot) or machine.arena.parities[slot]
        world.log("world", "bit flips", {"node": machine.name, "rank": rank, "version": version})
        machine.arena.damage(slot)
    return bool(places)


FAULTS = [FaultKind(kind="damage", drawn_as="corrupt", inject=damage_copy, chance=0.2, most=3)]
