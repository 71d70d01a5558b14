"""Nodes that leave or look ill, protection that changes, and jobs that shrink.

A person drains a node, or the system asks a node's agent to end. An operator changes how snapshots are protected while
the job runs. In a job that may shrink, nodes are lost with the last spare, carriers die, and nodes come for carried
ranks.

Of the nodes that look ill some die later, some are sound after all, some seem ill one moment and well the next. They
are chosen by random numbers of their own, so that older seeds still choose what they chose.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from deadpool.protocol.health import CORRECTABLE, HOT, LINK_RESETS, UNCORRECTABLE, XID
from deadpool.protocol.inputs import DrainAsked, LeaveAsked, SchemeAsked
from deadpool.protocol.schemes import Scheme
from deadpool_lab.sim.faults.fault import TIME, FaultKind, alive, pick, seated, spares
from deadpool_lab.sim.faults.machines import join, kill

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.world import World

DRAIN_TRIGGERS = (TIME, TIME, TIME, TIME, "go", "go", "fence", "drain", "left")
LEAVE_TRIGGERS = (TIME, TIME, TIME, "go", "fence", "planned", "drain", "handover", "left")

DIES = 0.5
"""The chance that an ill machine dies."""
DIES_WITHIN_S = 12.0
STORM_ERRORS = 50
STORM_EVERY_S = 0.7
"""A little more than errors of one episode lie apart at most."""
FLAP_S = 30.0
MILD = (CORRECTABLE, LINK_RESETS)
GRAVE = (UNCORRECTABLE, XID)
HEALTH_TRIGGERS = (TIME, TIME, TIME, TIME, "go", "left", "fault")


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


DEPARTURE_FAULTS = [
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
SCHEME_TRIGGERS = (TIME, TIME, TIME, "go", "fence", "planned", "drain")


def change_scheme(world: World) -> bool:
    """Asks for another scheme, which is no loss: what protects the watermark stays until something newer is protected
    in the new way. None means that the job is to choose again."""
    asked = [scheme for scheme in map(Scheme.parse, SCHEMES) if scheme.losses < world.layout.positions]
    fitting: list[Scheme | None] = [*asked, *([None] if world.options.coded else [])]
    chosen = world.rng.choice(fitting)
    world.log("world", "scheme", {"scheme": str(chosen)})
    world.feed(SchemeAsked(scheme=chosen))
    return True


PROTECTION_FAULTS = [FaultKind(kind="scheme", inject=change_scheme, chance=0.1, most=3, triggers=SCHEME_TRIGGERS)]


def ill(world: World) -> bool:
    """Errors that repeat, or hardware that has failed. It may die soon, before or after anything was done about it."""
    rng = _rng(world, "ill")
    machines = _pick(rng, seated(world))
    for machine in machines:
        grave = rng.random() < 0.4
        kind = rng.choice(GRAVE if grave else MILD)
        world.log("world", "machine falls ill", {"node": machine.name, "kind": kind})
        for index in range(1 if grave else 4):
            world.clock.after(index * STORM_EVERY_S, partial(count, machine, kind, STORM_ERRORS))
        if rng.random() < DIES:
            world.clock.after(DIES_WITHIN_S * rng.random(), partial(_die, world, machine))
    return bool(machines)


def false_alarm(world: World) -> bool:
    """Raises a false alarm of any machine, also of a spare. Nothing follows from it."""
    rng = _rng(world, "false alarm")
    machines = _pick(rng, alive(world))
    for machine in machines:
        kind = rng.choice((*MILD, *GRAVE))
        world.log("world", "false alarm", {"node": machine.name, "kind": kind})
        count(machine, kind, STORM_ERRORS)
    return bool(machines)


def flap(world: World) -> bool:
    """One storm after the other, with pauses that are now shorter and now longer than what is counted over."""
    rng = _rng(world, "flap")
    machines = _pick(rng, seated(world), 3)
    for machine in machines:
        world.log("world", "health flaps", {"node": machine.name})
        after_s = 0.0
        while after_s < FLAP_S:
            world.clock.after(after_s, partial(count, machine, rng.choice((*MILD, *GRAVE)), STORM_ERRORS))
            after_s += rng.choice((0.7, 0.7, 2.0, 7.0))
    return bool(machines)


def epidemic(world: World) -> bool:
    """Something that all machines suffer from, though not all at the same time: a hot day, a bad switch."""
    rng = _rng(world, "epidemic")
    kind = rng.choice((HOT, CORRECTABLE, LINK_RESETS))
    machines = alive(world)
    world.log("world", "epidemic", {"kind": kind})
    for machine in machines:
        for index in range(5):
            act = partial(heat, machine) if kind == HOT else partial(count, machine, kind, STORM_ERRORS)
            world.clock.after(index * STORM_EVERY_S + rng.random(), act)
    return bool(machines)


def count(machine: Machine, kind: str, errors: int) -> None:
    machine.error_counts[kind] = machine.error_counts.get(kind, 0) + errors
    machine.sample_health()


def heat(machine: Machine) -> None:
    machine.sample_health({HOT: 1.0})


def _die(world: World, machine: Machine) -> None:
    """Kills a machine that may have left the job by then, or have died of something else."""
    if machine.alive and not world.calm and world.outcome is None:
        kill(world, [machine])


def _rng(world: World, what: str) -> random.Random:
    return random.Random(f"{what} {world.options.seed} {world.clock.now}")


def _pick(rng: random.Random, among: list[Machine], most: int = 1) -> list[Machine]:
    return rng.sample(among, min(rng.randint(1, most), len(among)))


HEALTH_FAULTS = [
    FaultKind(kind="ill", inject=ill, chance=0.12, most=2, triggers=HEALTH_TRIGGERS),
    FaultKind(kind="false_alarm", inject=false_alarm, chance=0.1, most=3, triggers=HEALTH_TRIGGERS),
    FaultKind(kind="flap", inject=flap, chance=0.1, most=2, triggers=HEALTH_TRIGGERS),
    FaultKind(kind="epidemic", inject=epidemic, chance=0.05, most=1, triggers=HEALTH_TRIGGERS),
]
