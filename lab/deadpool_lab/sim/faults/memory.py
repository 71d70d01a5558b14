"""Faults of memory: flipped bits, and too little of it.

`damage_copy`: Bits that flip in a copy after it was sealed. None flips while it is loaded, since that could not be
noticed.

`state_grows` and `memory_eaten`: the memory of machines gets tight: states grow beside it, and other processes eat
it up and give it back.

Figures jump over the limits of the choice between copies and parity, after pauses that are shorter and longer than
the dwell time. They are drawn from random numbers of their own, as in `health.py`.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from deadpool_lab.sim.faults.fault import TIME, FaultKind, alive, pick, seated

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
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


LASTS_S = 40.0
PAUSES_S = (0.7, 2.0, 5.5, 6.5, 13.0)
"""The dwell time is 6 s."""
SHARES = (0.2, 0.3, 0.36, 0.39, 0.49, 0.52, 0.6, 0.8)
"""The shares of a machine's memory that whole copies take. Up to 0.5 are allowed, and 0.375 is clearly less."""
LEFT = (0.02, 0.09, 0.11, 0.3)
"""The shares of a machine's memory that are left for more copies. It runs out below 0.1."""
TRIGGERS = (TIME, TIME, TIME, "go", "fence", "planned", "took_over")


def state_grows(world: World) -> bool:
    """On all machines, or shrinks: what counts is its share of the memory."""
    rng = random.Random(f"state grows {world.options.seed} {world.clock.now}")
    for after_s in _moments(rng):
        world.clock.after(after_s, partial(_set_share, world, rng.choice(SHARES)))
    world.log("world", "state grows", {})
    return True


def memory_eaten(world: World) -> bool:
    """By another process, on one machine."""
    rng = random.Random(f"memory eaten {world.options.seed} {world.clock.now}")
    machines = seated(world)
    if not machines:
        return False
    machine = rng.choice(machines)
    for after_s in _moments(rng):
        world.clock.after(after_s, partial(_leave, world, machine, rng.choice(LEFT)))
    world.log("world", "memory is eaten", {"node": machine.name})
    return True


def _moments(rng: random.Random) -> list[float]:
    moments = [0.0]
    while moments[-1] < LASTS_S:
        moments.append(moments[-1] + rng.choice(PAUSES_S))
    return moments


def _set_share(world: World, share: float) -> None:
    if not world.calm:
        world.copies_share = share
        for machine in alive(world):
            machine.sample_health()


def _leave(world: World, machine: Machine, share: float) -> None:
    if machine.alive and not world.calm:
        machine.memory_left = share
        machine.sample_health()


MEMORY_USE_FAULTS = [
    FaultKind(kind="state_grows", inject=state_grows, chance=0.35, most=2, triggers=TRIGGERS),
    FaultKind(kind="memory_eaten", inject=memory_eaten, chance=0.35, most=2, triggers=TRIGGERS),
]
