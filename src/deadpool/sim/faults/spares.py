"""Spares that join late, and that die while they are parked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.sim.faults.fault import TIME, FaultKind
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
    FaultKind(
        kind="join", inject=join, chance=0.4, triggers=(TIME, TIME, "fence", "planned", "prepared", "awaiting_spare")
    ),
    FaultKind(kind="spare", inject=die, chance=0.2),
]
