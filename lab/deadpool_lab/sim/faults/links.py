"""Links that fail while both ends live: cut for a while, in one direction or both, or reset."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from deadpool_lab.sim.faults.fault import FaultKind, alive, pick, seated

if TYPE_CHECKING:
    from deadpool_lab.sim.network import Ends
    from deadpool_lab.sim.world import World

CUT_S = 25.0


def node_cut(world: World) -> bool:
    """One machine is cut off from every coordinator. It may be taken for lost, and comes back."""
    machines = pick(world, seated(world))
    for machine in machines:
        ends = [(machine.name, host.name) for host in world.hosts]
        _cut(world, [*ends, *_reversed(ends)])
    return bool(machines)


def node_half_cut(world: World) -> bool:
    """Cuts one direction only, between one machine and every coordinator."""
    machines = pick(world, seated(world))
    for machine in machines:
        ends = [(machine.name, host.name) for host in world.hosts]
        _cut(world, ends if world.rng.random() < 0.5 else _reversed(ends))
    return bool(machines)


def peers_cut(world: World) -> bool:
    """Machines are cut off from each other: copies and collectives stand still, and coordinators still hear them."""
    names = [machine.name for machine in pick(world, alive(world), world.rng.randint(2, 3))]
    ends = list(permutations(names, 2))
    _cut(world, ends if world.rng.random() < 0.5 else [end for end in ends if world.rng.random() < 0.5])
    return bool(ends)


def split(world: World) -> bool:
    """All machines and coordinators are on one side or the other. A single coordinator would lose the job, so there
    have to be several."""
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
        world.log("world", "link reset", {"node": machine.name})
        machine.reset_link()
    return bool(machines)


def _cut(world: World, ends: list[Ends]) -> None:
    """A node that looks for another coordinator meanwhile may be lost, and such losses are not counted."""
    world.checkers.on_disturbance()
    world.network.cut(ends, for_s=CUT_S * world.rng.random() ** 2)


def _reversed(ends: list[Ends]) -> list[Ends]:
    return [(b, a) for a, b in ends]


FAULTS = [
    FaultKind(kind="node_cut", inject=node_cut, chance=0.1),
    FaultKind(kind="node_half_cut", inject=node_half_cut, chance=0.1),
    FaultKind(kind="peers_cut", inject=peers_cut, chance=0.15),
    FaultKind(kind="split", inject=split, chance=0.1),
    FaultKind(kind="reset", inject=reset, chance=0.1),
]
