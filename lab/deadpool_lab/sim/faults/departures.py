"""Nodes that leave on purpose: a person drains one, or the system asks a node's agent to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.inputs import DrainAsked, LeaveAsked
from deadpool_lab.sim.faults.fault import TIME, FaultKind
from deadpool_lab.sim.faults.targets import alive, pick, seated

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World

DRAIN_TRIGGERS = (TIME, TIME, TIME, TIME, "go", "go", "fence", "drain", "left")
LEAVE_TRIGGERS = (TIME, TIME, TIME, "go", "fence", "planned", "drain", "handover", "left")


def drain(world: World) -> bool:
    """A drain is no loss: the job keeps the node as long as it needs it."""
    nodes = pick(world, seated(world))
    for machine in nodes:
        world.log("world", "drain", {"node": machine.name})
        world.feed(DrainAsked(node=machine.name, reason="asked to"))
    return bool(nodes)


def leave(world: World) -> bool:
    """Any node, also a spare. Where no spare can take its ranks this is a loss like any other."""
    machines = pick(world, alive(world))
    for machine in machines:
        if machine in seated(world):
            world.checkers.before_loss(nodes=1)
        world.log("world", "told to leave", {"node": machine.name})
        machine.told_to_leave = True
        machine.feed(LeaveAsked(reason="its agent got SIGTERM"))
    return bool(machines)


FAULTS = [
    FaultKind(kind="drain", inject=drain, chance=0.3, most=3, triggers=DRAIN_TRIGGERS),
    FaultKind(kind="leave", inject=leave, chance=0.2, triggers=LEAVE_TRIGGERS),
]
