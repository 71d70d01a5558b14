"""Machines that die, alone and in twos, that stop for a while, start again, or are out of reach for good."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from deadpool_lab.sim.faults.fault import FaultKind
from deadpool_lab.sim.faults.targets import alive, pick, seated

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.world import World


PAUSE_S = 15.0
REBOOT_S = 15.0


def kill(world: World, machines: list[Machine], *, quietly: bool = False) -> bool:
    if machines:
        world.checkers.before_loss(nodes=len(machines))
    for machine in machines:
        world.log("world", "machine dies", {"node": machine.name, "quietly": quietly or None})
        machine.is_lost = True
        machine.die(quietly=quietly)
    return bool(machines)


def one(world: World) -> bool:
    return kill(world, pick(world, seated(world)))


def power(world: World) -> bool:
    """No link is closed: only silence tells."""
    return kill(world, pick(world, seated(world)), quietly=True)


def reboot(world: World) -> bool:
    """Reboots a machine, which comes back under its name without memory, perhaps before it was missed."""
    machines = pick(world, alive(world))
    killed = kill(world, machines, quietly=world.rng.random() < 0.5)
    for machine in machines:
        world.after(REBOOT_S, partial(_return, world, machine.name))
    return killed


def _return(world: World, name: str) -> None:
    """Lets a machine try until it is accepted, as a launcher does whose agent was refused."""
    if world.outcome is None and not world.machines[name].alive and not world.calm:
        world.log("world", "machine returns", {"node": name})
        world.add_machine(name, spare=True)
        world.after(REBOOT_S, partial(_return, world, name))


def pause(world: World) -> bool:
    """An agent gets SIGSTOP, for less or for more than the node timeout. Its trainers go on."""
    machines = pick(world, alive(world))
    for machine in machines:
        seconds = PAUSE_S * world.rng.random() ** 2
        world.checkers.before_loss(nodes=1)
        world.log("world", "agent stops", {"node": machine.name, "seconds": seconds})
        machine.pause(seconds)
        world.heal_at_peace(machine.resume)
    return bool(machines)


def two(world: World) -> bool:
    return kill(world, pick(world, seated(world), 2))


def newcomer(world: World) -> bool:
    return kill(world, pick(world, [machine for machine in seated(world) if machine.spare]))


def cut_off(world: World) -> bool:
    """Cuts a machine off from every coordinator for ever. It is alive: its trainers and its data plane go on."""
    machines = pick(world, seated(world))
    for machine in machines:
        world.checkers.before_loss(nodes=1)
        world.log("world", "machine cut off", {"node": machine.name})
        machine.is_lost = True
        for host in world.hosts:
            world.network.cut([(machine.name, host.name), (host.name, machine.name)], for_s=None)
    return bool(machines)


FAULTS = [
    FaultKind(kind="node", inject=one, chance=0.5, most=3),
    FaultKind(kind="power", inject=power, chance=0.2),
    FaultKind(kind="reboot", inject=reboot, chance=0.15),
    FaultKind(kind="pause", inject=pause, chance=0.15),
    FaultKind(kind="pair", inject=two, chance=0.12, most=1),
    FaultKind(kind="newcomer", inject=newcomer, chance=0.15),
    FaultKind(kind="cut_off", inject=cut_off, chance=0.15),
]
