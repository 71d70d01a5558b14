"""Links that fail while both ends live: cut for a while, in one direction or both, or reset."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from deadpool.sim.faults.fault import Fault
from deadpool.sim.faults.targets import alive, pick, seated

if TYPE_CHECKING:
    from deadpool.sim.network import Ends
    from deadpool.sim.world import World

CUT_S = 25.0


def node_cut(world: World) -> bool:
    """One machine, from every coordinator. It may be taken for lost, and comes back."""
    machines = pick(world, seated(world))
    for machine in machines:
        ends = [(machine.name, host.name) for host in world.hosts]
        _cut(world, [*ends, *_reversed(ends)])
    return bool(machines)


def node_half_cut(world: World) -> bool:
    """It hears and is not heard, or the other way round."""
    machines = pick(world, seated(world))
    for machine in machines:
        ends = [(machine.name, host.name) for host in world.hosts]
        _cut(world, ends if world.rng.random() < 0.5 else _reversed(ends))
    return bool(machines)


def peers_cut(world: World) -> bool:
    """Machines from each other, or one from some: copies and collectives stand still, and all are heard of."""
    names = [machine.name for machine in pick(world, alive(world), world.rng.randint(2, 3))]
    ends = list(permutations(names, 2))
    _cut(world, ends if world.rng.random() < 0.5 else [end for end in ends if world.rng.random() < 0.5])
    return bool(ends)


def split(world: World) -> bool:
    """Everybody is on one side or the other, coordinators too; a single coordinator would lose the job."""
    places = [*(machine.name for machine in alive(world)), *(host.name for host in world.hosts)]
    if not world.options.standbys:
        return False
    left = [place for place in places if world.rng.random() < 0.4]
    right = [place for place in places if place not in left]
    ends = [(a, b) for a in left for b in right]
    _cut(world, [*ends, *_reversed(ends)])
    return bool(ends)


def reset(world: World) -> bool:
    machines = pick(world, alive(world))
    for machine in machines:
        world.checkers.before_loss(nodes=1)
        world.tell("world", "link reset", {"node": machine.name})
        machine.reset_link()
    return bool(machines)


def _cut(world: World, ends: list[Ends]) -> None:
    """Who goes elsewhere for it, and is lost by that, nobody counts."""
    world.checkers.disturbed()
    world.network.cut(ends, for_s=CUT_S * world.rng.random() ** 2)


def _reversed(ends: list[Ends]) -> list[Ends]:
    return [(b, a) for a, b in ends]


FAULTS = [
    Fault(kind="node_cut", injection=node_cut, chance=0.1),
    Fault(kind="node_half_cut", injection=node_half_cut, chance=0.1),
    Fault(kind="peers_cut", injection=peers_cut, chance=0.15),
    Fault(kind="split", injection=split, chance=0.1),
    Fault(kind="reset", injection=reset, chance=0.1),
]
