"""Processes that die or hang, and collectives that break although no process died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.inputs import FromAgent
from deadpool.protocol.messages import TrainerLost
from deadpool_lab.sim.faults.fault import FaultKind
from deadpool_lab.sim.faults.targets import pick, processes, seated

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


def kill(world: World) -> bool:
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


FAULTS = [
    FaultKind(kind="trainer", inject=kill, chance=0.4, most=3),
    FaultKind(kind="hang", inject=hang, chance=0.25, most=1),
    FaultKind(kind="alarm", inject=alarm, chance=0.25),
]
