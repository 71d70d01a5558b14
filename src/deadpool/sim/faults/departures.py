"""Nodes that leave on purpose: a person drains one, or the system asks a node's agent to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.effects import DrainAsked, LeaveAsked
from deadpool.sim.faults.fault import TIME, Fault
from deadpool.sim.faults.targets import alive, pick, seated

if TYPE_CHECKING:
    from deadpool.sim.world import World

DRAIN_WHENS = (TIME, TIME, TIME, TIME, "go", "go", "fence", "drain", "left")
LEAVE_WHENS = (TIME, TIME, TIME, "go", "fence", "planned", "drain", "handover", "left")


def drain(world: World) -> bool:
    """No loss: whatever becomes of it, the job has the node as long as it needs it."""
    nodes = pick(world, seated(world))
    for machine in nodes:
        world.tell("world", "drain", {"node": machine.name})
        world.feed(DrainAsked(node=machine.name, reason="asked to"))
    return bool(nodes)


def leave(world: World) -> bool:
    """Anybody, spares too. Where no spare can take its ranks this is a loss like any other."""
    machines = pick(world, alive(world))
    for machine in machines:
        if machine in seated(world):
            world.checkers.before_loss(nodes=1)
        world.tell("world", "told to leave", {"node": machine.name})
        machine.told_to_leave = True
        machine.feed(LeaveAsked(reason="its agent got SIGTERM"))
    return bool(machines)


FAULTS = [
    Fault(kind="drain", injection=drain, chance=0.3, most=3, whens=DRAIN_WHENS),
    Fault(kind="leave", injection=leave, chance=0.2, whens=LEAVE_WHENS),
]
