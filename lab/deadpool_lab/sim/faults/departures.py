"""Nodes that leave, protection that changes, and jobs that shrink.

`drain` and `leave`: Nodes that leave on purpose: a person drains one, or the system asks a node's agent to end.

`shortage`, `carrier` and `refill`: Faults of a job that may shrink: nodes are lost with the last spare, carriers
die, nodes come for carried ranks.

`change_scheme`: an operator changes how snapshots are protected while the job runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.inputs import DrainAsked, LeaveAsked, SchemeAsked
from deadpool.protocol.schemes import Scheme
from deadpool_lab.sim.faults.fault import TIME, FaultKind, alive, pick, seated, spares
from deadpool_lab.sim.faults.machines import join, kill

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


def shortage(world: World) -> bool:
    """A machine dies with every spare there is."""
    return kill(world, [*pick(world, seated(world)), *spares(world)])


def carrier(world: World) -> bool:
    nodes = world.checkers.shrink.carrying_nodes
    return kill(world, pick(world, [machine for machine in seated(world) if machine.name in nodes]))


def refill(world: World) -> bool:
    return bool(world.checkers.shrink.carried) and join(world)


SIZE_FAULTS = [
    FaultKind(kind="shortage", inject=shortage, chance=1.2, triggers=(TIME,)),
    FaultKind(kind="carrier", inject=carrier, chance=0.3, triggers=(TIME, "shrunk", "shrunk", "grown", "fence")),
    FaultKind(kind="refill", inject=refill, chance=0.5, most=3, triggers=(TIME, "shrunk", "shrunk", "grown")),
]


SCHEMES = ("copies=1", "copies=2", "rs(2,1)", "rs(4,1)", "rs(3,2)")
TRIGGERS = (TIME, TIME, TIME, "go", "fence", "planned", "drain")


def change_scheme(world: World) -> bool:
    """Asks for another scheme, which is no loss: what protects the watermark stays until something newer is protected
    in the new way. None means that the job is to choose again."""
    asked = [scheme for scheme in map(Scheme.parse, SCHEMES) if scheme.losses < world.layout.positions]
    fitting: list[Scheme | None] = [*asked, *([None] if world.options.coded else [])]
    chosen = world.rng.choice(fitting)
    world.log("world", "scheme", {"scheme": str(chosen)})
    world.feed(SchemeAsked(scheme=chosen))
    return True


PROTECTION_FAULTS = [FaultKind(kind="scheme", inject=change_scheme, chance=0.1, most=3, triggers=TRIGGERS)]
