"""Spares that join late, that die while they are parked, and whose machine another job takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool_lab.sim.faults.fault import TIME, FaultKind
from deadpool_lab.sim.faults.machines import kill
from deadpool_lab.sim.faults.targets import pick, spares

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


LEASE_TRIGGERS = (TIME, TIME, "fault", "fence", "fence", "planned", "awaiting_spare")
NOTICED_S = 3.0


def join(world: World) -> bool:
    world.add_machine(f"j{world.next_number()}", spare=True)
    return True


def die(world: World) -> bool:
    return kill(world, pick(world, spares(world)))


def lease(world: World) -> bool:
    """A machine of a pool: another job needed it first. Its agent may find out only when this job needs it."""
    free = [machine for machine in spares(world) if not machine.is_leased and not machine.is_leased_elsewhere]
    machines = pick(world, free)
    for machine in machines:
        world.log("world", "leased to another job", {"node": machine.name})
        machine.lease_elsewhere(noticed_s=NOTICED_S * world.rng.random())
    return bool(machines)


FAULTS = [
    FaultKind(
        kind="join", inject=join, chance=0.4, triggers=(TIME, TIME, "fence", "planned", "prepared", "awaiting_spare")
    ),
    FaultKind(kind="spare", inject=die, chance=0.2),
    FaultKind(kind="lease", inject=lease, chance=0.2, triggers=LEASE_TRIGGERS),
]
