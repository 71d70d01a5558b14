"""Faults of machines, of their memory, of spares, and of trainer processes.

Machines die, alone and in twos, stop for a while, start again, or are out of reach for good. Processes die or hang, and
collectives break although no process died. Spares join late, die while they are parked, and another job takes the
machine of one.

Bits flip in a copy after it was sealed; none flips while it is loaded, since that could not be noticed. The memory of
machines gets tight: states grow beside it, and other processes eat it up and give it back. Figures jump over the limits
of the choice between copies and parity, after pauses that are shorter and longer than the dwell time. They are drawn
from random numbers of their own, as illnesses are.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from deadpool.protocol.inputs import FromAgent
from deadpool.protocol.messages import TrainerLost
from deadpool_lab.sim.faults.fault import TIME, FaultKind, alive, pick, processes, seated, spares

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


MACHINE_FAULTS = [
    FaultKind(kind="node", inject=one, chance=0.5, most=3),
    FaultKind(kind="power", inject=power, chance=0.2),
    FaultKind(kind="reboot", inject=reboot, chance=0.15),
    FaultKind(kind="pause", inject=pause, chance=0.15),
    FaultKind(kind="pair", inject=two, chance=0.12, most=1),
    FaultKind(kind="newcomer", inject=newcomer, chance=0.15),
    FaultKind(kind="cut_off", inject=cut_off, chance=0.15),
]


def kill_trainer(world: World) -> bool:
    candidates = processes(world)
    resting = [process for process in candidates if process.stage == "await_restore"]
    for process in pick(world, resting or candidates):  # under a fence, the plan may already count on it
        world.checkers.before_loss(nodes=0)
        world.log("world", "trainer dies", {"trainer": process.name, "stage": process.stage})
        process.machine.starts_killed += process.stage == "starting"
        process.exit(-9, "killed")
    return bool(candidates)


def hang(world: World) -> bool:
    stepping = [process for process in processes(world) if process.is_stepping]
    for process in pick(world, stepping):
        world.checkers.before_loss(nodes=0)
        world.log("world", "trainer hangs", {"trainer": process.name})
        process.hang()
    return bool(stepping)


def alarm(world: World) -> bool:
    """Communication broke and no process died: every rank has its live state at the fence."""
    coordinator = world.coordinator
    if coordinator.phase.value != "running" or not seated(world):
        return False
    machine = world.rng.choice(seated(world))
    rank = world.layout.ranks_at(coordinator.seats.index(machine.name))[0]
    world.log("world", "alarm", {"rank": rank})
    lost = TrainerLost(generation=coordinator.generation, trainer="", rank=rank, reason="a group broke")
    world.feed(FromAgent(node=machine.name, message=lost))
    return True


TRAINER_FAULTS = [
    FaultKind(kind="trainer", inject=kill_trainer, chance=0.4, most=3),
    FaultKind(kind="hang", inject=hang, chance=0.25, most=1),
    FaultKind(kind="alarm", inject=alarm, chance=0.25),
]


LEASE_TRIGGERS = (TIME, TIME, "fault", "fence", "fence", "planned", "awaiting_spare")
NOTICED_S = 3.0


def join(world: World) -> bool:
    world.add_machine(f"j{world.next_number()}", spare=True)
    return True


def die(world: World) -> bool:
    return kill(world, pick(world, spares(world)))


def lease(world: World) -> bool:
    """A machine of a pool: another job needed it first. Its agent may find out only when this job needs it."""
    free = [machine for machine in spares(world) if not machine.is_leased and not machine.is_leased_elsewhere]
    machines = pick(world, free)
    for machine in machines:
        world.log("world", "leased to another job", {"node": machine.name})
        machine.lease_elsewhere(noticed_s=NOTICED_S * world.rng.random())
    return bool(machines)


SPARE_FAULTS = [
    FaultKind(
        kind="join", inject=join, chance=0.4, triggers=(TIME, TIME, "fence", "planned", "prepared", "awaiting_spare")
    ),
    FaultKind(kind="spare", inject=die, chance=0.2),
    FaultKind(kind="lease", inject=lease, chance=0.2, triggers=LEASE_TRIGGERS),
]


def damage_copy(world: World) -> bool:
    quiet = [machine for machine in alive(world) if not any(p.stage == "loading" for p in machine.processes.values())]
    places = [(machine, slot) for machine in quiet for slot in machine.arena.sealed]
    places += [(machine, slot) for machine in quiet for slot in machine.arena.parities]
    for machine, slot in pick(world, places):
        rank, version = machine.arena.sealed.get(slot) or machine.arena.parities[slot]
        world.log("world", "bit flips", {"node": machine.name, "rank": rank, "version": version})
        machine.arena.damage(slot)
    return bool(places)


MEMORY_FAULTS = [FaultKind(kind="damage", drawn_as="corrupt", inject=damage_copy, chance=0.2, most=3)]


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
