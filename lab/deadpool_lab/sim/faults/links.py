"""Faults of coordinators and links: coordinators die and return, stall, and are cut off from some machines, and links
fail while both ends live. What is cut is cut for a while, in one direction or both."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING

from deadpool_lab.sim.faults import machines
from deadpool_lab.sim.faults.fault import TIME, FaultKind, alive, pick, seated

if TYPE_CHECKING:
    from deadpool_lab.sim.hosts import Host
    from deadpool_lab.sim.network import Ends
    from deadpool_lab.sim.world import World

AWAY_S = 10.0
COORDINATOR_CUT_S = 20.0
STALL_S = 8.0
WITH_MACHINE = "coordinator_machine"
TRIGGERS = (TIME, TIME, "fault", "fence", "planned", "prepared", "go", "took_over")

LINK_CUT_S = 25.0


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
    return _cut_coordinators(world, [True, False])


def half_cut(world: World) -> bool:
    return _cut_coordinators(world, [world.rng.random() < 0.5])


def _cut_coordinators(world: World, directions: list[bool]) -> bool:
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
    world.network.cut(cuts, for_s=COORDINATOR_CUT_S * world.rng.random())
    return True


COORDINATOR_FAULTS = [
    FaultKind(kind="coordinator", inject=die, chance=0.25, most=3, triggers=TRIGGERS),
    FaultKind(kind="coordinator_power", inject=power, chance=0.1, triggers=TRIGGERS),
    FaultKind(kind=WITH_MACHINE, inject=with_machine, chance=0.25, triggers=TRIGGERS),
    FaultKind(kind="coordinator_stall", inject=stall, chance=0.1, triggers=TRIGGERS),
    FaultKind(kind="coordinator_cut", inject=cut, chance=0.1, triggers=TRIGGERS),
    FaultKind(kind="coordinator_half_cut", inject=half_cut, chance=0.1, triggers=TRIGGERS),
]


def node_cut(world: World) -> bool:
    """One machine is cut off from every coordinator. It may be taken for lost, and comes back."""
    machines = pick(world, seated(world))
    for machine in machines:
        ends = [(machine.name, host.name) for host in world.hosts]
        _cut_links(world, [*ends, *_reversed(ends)])
    return bool(machines)


def node_half_cut(world: World) -> bool:
    """Cuts one direction only, between one machine and every coordinator."""
    machines = pick(world, seated(world))
    for machine in machines:
        ends = [(machine.name, host.name) for host in world.hosts]
        _cut_links(world, ends if world.rng.random() < 0.5 else _reversed(ends))
    return bool(machines)


def peers_cut(world: World) -> bool:
    """Machines are cut off from each other: copies and collectives stand still, and coordinators still hear them."""
    names = [machine.name for machine in pick(world, alive(world), world.rng.randint(2, 3))]
    ends = list(permutations(names, 2))
    _cut_links(world, ends if world.rng.random() < 0.5 else [end for end in ends if world.rng.random() < 0.5])
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
    _cut_links(world, [*ends, *_reversed(ends)])
    return bool(ends)


def reset(world: World) -> bool:
    machines = pick(world, alive(world))
    for machine in machines:
        world.checkers.before_loss(nodes=1)
        world.log("world", "link reset", {"node": machine.name})
        machine.reset_link()
    return bool(machines)


def _cut_links(world: World, ends: list[Ends]) -> None:
    """A node that looks for another coordinator meanwhile may be lost, and such losses are not counted."""
    world.checkers.on_disturbance()
    world.network.cut(ends, for_s=LINK_CUT_S * world.rng.random() ** 2)


def _reversed(ends: list[Ends]) -> list[Ends]:
    return [(b, a) for a, b in ends]


LINK_FAULTS = [
    FaultKind(kind="node_cut", inject=node_cut, chance=0.1),
    FaultKind(kind="node_half_cut", inject=node_half_cut, chance=0.1),
    FaultKind(kind="peers_cut", inject=peers_cut, chance=0.15),
    FaultKind(kind="split", inject=split, chance=0.1),
    FaultKind(kind="reset", inject=reset, chance=0.1),
]
