"""Machines that die, alone and in twos, that stop for a while, start again, or are out of reach for good."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from deadpool.sim.faults.fault import Fault
from deadpool.sim.faults.targets import alive, pick, seated

if TYPE_CHECKING:
    from deadpool.sim.machine import Machine
    from deadpool.sim.world import World


PAUSE_S = 15.0
REBOOT_S = 15.0


def kill(world: World, machines: list[Machine], *, quietly: bool = False) -> bool:
    if machines:
        world.checkers.before_loss(nodes=len(machines))
    for machine in machines:
        world.tell("world", "machine dies", {"node": machine.name, "quietly": quietly or None})
        machine.fallen = True
        machine.die(quietly=quietly)
    return bool(machines)


def one(world: World) -> bool:
    return kill(world, pick(world, seated(world)))


def power(world: World) -> bool:
    """Nobody closes its links: only its silence tells."""
    return kill(world, pick(world, seated(world)), quietly=True)


def reboot(world: World) -> bool:
    """It comes back under its name, with nothing, perhaps before anybody has missed it."""
    machines = pick(world, alive(world))
    killed = kill(world, machines, quietly=world.rng.random() < 0.5)
    for machine in machines:
        world.after(REBOOT_S, partial(_return, world, machine.name))
    return killed


def _return(world: World, name: str) -> None:
    """Until it is let in: a launcher tries again when its agent was sent away."""
    if world.outcome is None and not world.machines[name].alive and not world.calm:
        world.tell("world", "machine returns", {"node": name})
        world.add_machine(name, spare=True)
        world.after(REBOOT_S, partial(_return, world, name))


def pause(world: World) -> bool:
    """SIGSTOP of an agent, for less or for more than it takes to be missed. Its trainers go on."""
    machines = pick(world, alive(world))
    for machine in machines:
        seconds = PAUSE_S * world.rng.random() ** 2
        world.checkers.before_loss(nodes=1)
        world.tell("world", "agent stops", {"node": machine.name, "seconds": seconds})
        machine.pause(seconds)
        world.heal_at_peace(machine.resume)
    return bool(machines)


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
            world.network.cut([(machine.name, host.name), (host.name, machine.name)], for_s=None)
    return bool(machines)


FAULTS = [
    Fault(kind="node", injection=one, chance=0.5, most=3),
    Fault(kind="power", injection=power, chance=0.2),
    Fault(kind="reboot", injection=reboot, chance=0.15),
    Fault(kind="pause", injection=pause, chance=0.15),
    Fault(kind="pair", injection=two, chance=0.12, most=1),
    Fault(kind="newcomer", injection=newcomer, chance=0.15),
    Fault(kind="cut_off", injection=cut_off, chance=0.15),
]
