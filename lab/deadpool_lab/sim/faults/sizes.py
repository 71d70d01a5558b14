"""Faults of a job that may shrink: nodes are lost with the last spare, carriers die, nodes come for carried ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool_lab.sim.faults.fault import TIME, FaultKind
from deadpool_lab.sim.faults.machines import kill
from deadpool_lab.sim.faults.spares import join
from deadpool_lab.sim.faults.targets import pick, seated, spares

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


def shortage(world: World) -> bool:
    """A machine dies with every spare there is."""
    return kill(world, [*pick(world, seated(world)), *spares(world)])


def carrier(world: World) -> bool:
    nodes = world.checkers.shrink.carrying_nodes
    return kill(world, pick(world, [machine for machine in seated(world) if machine.name in nodes]))


def refill(world: World) -> bool:
    return bool(world.checkers.shrink.carried) and join(world)


FAULTS = [
    FaultKind(kind="shortage", inject=shortage, chance=1.2, triggers=(TIME,)),
    FaultKind(kind="carrier", inject=carrier, chance=0.3, triggers=(TIME, "shrunk", "shrunk", "grown", "fence")),
    FaultKind(kind="refill", inject=refill, chance=0.5, most=3, triggers=(TIME, "shrunk", "shrunk", "grown")),
]
