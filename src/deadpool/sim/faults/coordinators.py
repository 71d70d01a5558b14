"""What happens to coordinators: they die and return, stall, and are cut off from some machines, or half cut off."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from deadpool.sim.faults.fault import TIME, Fault

if TYPE_CHECKING:
    from deadpool.sim.hosts import Host
    from deadpool.sim.world import World

AWAY_S = 10.0
CUT_S = 20.0
STALL_S = 8.0
WHENS = (TIME, TIME, "fault", "fence", "planned", "prepared", "go", "took_over")


def die(world: World) -> bool:
    return _kill(world, quietly=False)


def power(world: World) -> bool:
    return _kill(world, quietly=True)


def _kill(world: World, *, quietly: bool) -> bool:
    """One that has no standby comes back; of others some do, and all when there is peace."""
    host = world.present
    if not host.alive:
        return False
    world.checkers.disturbed()
    host.die(quietly=quietly)
    world.heal_at_peace(partial(revive, world, host))
    if not world.options.standbys or world.rng.random() < 0.5:
        world.after(AWAY_S, partial(revive, world, host))
    return True


def revive(world: World, host: Host) -> None:
    if not host.alive and world.outcome is None:
        host.start(world.charter, founds=False)
        host.begin()


def stall(world: World) -> bool:
    if not world.present.alive:
        return False
    world.checkers.disturbed()
    world.present.stall(STALL_S * world.rng.random())
    return True


def cut(world: World) -> bool:
    return _cut(world, [True, False])


def half_cut(world: World) -> bool:
    return _cut(world, [world.rng.random() < 0.5])


def _cut(world: World, directions: list[bool]) -> bool:
    """A single coordinator would lose the job with too many machines; several have to sort it out."""
    host = world.present
    names = sorted(name for name, machine in world.machines.items() if machine.alive)
    if not host.alive or not names:
        return False
    world.checkers.disturbed()
    count = world.rng.randint(1, len(names)) if world.options.standbys else 1
    cuts = []
    for name in world.rng.sample(names, count):
        cuts += [(name, host.name) if upwards else (host.name, name) for upwards in directions]
    world.network.cut(cuts, for_s=CUT_S * world.rng.random())
    return True


FAULTS = [
    Fault(kind="coordinator", injection=die, chance=0.25, most=3, whens=WHENS),
    Fault(kind="coordinator_power", injection=power, chance=0.1, whens=WHENS),
    Fault(kind="coordinator_stall", injection=stall, chance=0.1, whens=WHENS),
    Fault(kind="coordinator_cut", injection=cut, chance=0.1, whens=WHENS),
    Fault(kind="coordinator_half_cut", injection=half_cut, chance=0.1, whens=WHENS),
]
