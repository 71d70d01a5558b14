"""Nodes that look ill: some die later, some are sound after all, some seem ill one moment and well the next.

Machines are chosen by random numbers of their own, so that older seeds still choose what they chose.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from deadpool.protocol.health import CORRECTABLE, HOT, LINK_RESETS, UNCORRECTABLE, XID
from deadpool_lab.sim.faults.fault import TIME, FaultKind, alive, seated
from deadpool_lab.sim.faults.machines import kill

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.world import World

DIES = 0.5
"""The chance that an ill machine dies."""
DIES_WITHIN_S = 12.0
STORM_ERRORS = 50
STORM_EVERY_S = 0.7
"""A little more than errors of one episode lie apart at most."""
FLAP_S = 30.0
MILD = (CORRECTABLE, LINK_RESETS)
GRAVE = (UNCORRECTABLE, XID)
TRIGGERS = (TIME, TIME, TIME, TIME, "go", "left", "fault")


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


FAULTS = [
    FaultKind(kind="ill", inject=ill, chance=0.12, most=2, triggers=TRIGGERS),
    FaultKind(kind="false_alarm", inject=false_alarm, chance=0.1, most=3, triggers=TRIGGERS),
    FaultKind(kind="flap", inject=flap, chance=0.1, most=2, triggers=TRIGGERS),
    FaultKind(kind="epidemic", inject=epidemic, chance=0.05, most=1, triggers=TRIGGERS),
]
