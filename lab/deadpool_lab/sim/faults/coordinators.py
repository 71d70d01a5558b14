"""Faults of coordinators: they die and return, stall, and are cut off from some machines, in one direction or both."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from deadpool_lab.sim.faults import machines
from deadpool_lab.sim.faults.fault import TIME, FaultKind

if TYPE_CHECKING:
    from deadpool_lab.sim.hosts import Host
    from deadpool_lab.sim.world import World

AWAY_S = 10.0
CUT_S = 20.0
STALL_S = 8.0
WITH_MACHINE = "coordinator_machine"
TRIGGERS = (TIME, TIME, "fault", "fence", "planned", "prepared", "go", "took_over")


def die(world: World) -> bool:
    return _kill(world, quietly=False)


def power(world: World) -> bool:
    return _kill(world, quietly=True)


def with_machine(world: World) -> bool:
    """The machine that the coordinator and ranks are on loses its power: both are lost at once, and nothing says so."""
    return _kill(world, quietly=True) and machines.power(world)


def _kill(world: World, *, quietly: bool) -> bool:
    """A coordinator without standbys comes back; of others some do, and all in the liveness phase."""
    host = world.leading_host
    if not host.alive:
        return False
    world.checkers.on_disturbance()
    host.die(quietly=quietly)
    world.heal_at_peace(partial(revive, world, host))
    if not world.options.standbys or world.rng.random() < 0.5:
        world.after(AWAY_S, partial(revive, world, host))
    return True


def revive(world: World, host: Host) -> None:
    if not host.alive and world.outcome is None:
        host.start(world.charter, founds=False)
        host.wake()


def stall(world: World) -> bool:
    if not world.leading_host.alive:
        return False
    world.checkers.on_disturbance()
    world.leading_host.stall(STALL_S * world.rng.random())
    return True


def cut(world: World) -> bool:
    return _cut(world, [True, False])


def half_cut(world: World) -> bool:
    return _cut(world, [world.rng.random() < 0.5])


def _cut(world: World, directions: list[bool]) -> bool:
    """A single coordinator is cut off from one machine only, since it would lose the job with most of them."""
    host = world.leading_host
    names = sorted(name for name, machine in world.machines.items() if machine.alive)
    if not host.alive or not names:
        return False
    world.checkers.on_disturbance()
    count = world.rng.randint(1, len(names)) if world.options.standbys else 1
    cuts = []
    for name in world.rng.sample(names, count):
        cuts += [(name, host.name) if upwards else (host.name, name) for upwards in directions]
    world.network.cut(cuts, for_s=CUT_S * world.rng.random())
    return True


FAULTS = [
    FaultKind(kind="coordinator", inject=die, chance=0.25, most=3, triggers=TRIGGERS),
    FaultKind(kind="coordinator_power", inject=power, chance=0.1, triggers=TRIGGERS),
    FaultKind(kind=WITH_MACHINE, inject=with_machine, chance=0.25, triggers=TRIGGERS),
    FaultKind(kind="coordinator_stall", inject=stall, chance=0.1, triggers=TRIGGERS),
    FaultKind(kind="coordinator_cut", inject=cut, chance=0.1, triggers=TRIGGERS),
    FaultKind(kind="coordinator_half_cut", inject=half_cut, chance=0.1, triggers=TRIGGERS),
]
