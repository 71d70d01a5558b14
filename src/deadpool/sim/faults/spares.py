"""Spares that join late, and that die while they are parked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.sim.faults.fault import TIME, Fault
from deadpool.sim.faults.machines import kill
from deadpool.sim.faults.targets import pick, spares

if TYPE_CHECKING:
    from deadpool.sim.world import World


def join(world: World) -> bool:
    world.add_machine(f"j{world.next_number()}", spare=True)
    return True


def die(world: World) -> bool:
    return kill(world, pick(world, spares(world)))


FAULTS = [
    Fault(
        kind="join", injection=join, chance=0.4, whens=(TIME, TIME, "fence", "planned", "prepared", "awaiting_spare")
    ),
    Fault(kind="spare", injection=die, chance=0.2),
]
