"""Machines that die, alone and in twos, and machines that no coordinator can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.sim.faults.fault import Fault
from deadpool.sim.faults.targets import pick, seated

if TYPE_CHECKING:
    from deadpool.sim.machine import Machine
    from deadpool.sim.world import World


def kill(world: World, machines: list[Machine]) -> bool:
    if machines:
        world.checkers.before_loss(nodes=len(machines))
    for machine in machines:
        world.tell("world", "machine dies", {"node": machine.name})
        machine.fallen = True
        machine.die()
    return bool(machines)


def one(world: World) -> bool:
    return kill(world, pick(world, seated(world)))


def two(world: World) -> bool:
    return kill(world, pick(world, seated(world), 2))


def newcomer(world: World) -> bool:
    return kill(world, pick(world, [machine for machine in seated(world) if machine.spare]))


def cut_off(world: World) -> bool:
    """From every coordinator, for ever, but alive: its trainers and its data plane go on."""
    machines = pick(world, seated(world))
    for machine in machines:
        world.checkers.before_loss(nodes=1)
        world.tell("world", "machine cut off", {"node": machine.name})
        machine.fallen = True
        for host in world.hosts:
            world.cut_off(machine.name, host.name)
    return bool(machines)


FAULTS = [
    Fault(kind="node", strike=one, chance=0.5, most=3),
    Fault(kind="pair", strike=two, chance=0.12, most=1),
    Fault(kind="newcomer", strike=newcomer, chance=0.15),
    Fault(kind="cut_off", strike=cut_off, chance=0.15),
]
