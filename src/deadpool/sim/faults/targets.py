"""Whom a fault can injection, and in which phase of a recovery it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from deadpool.protocol.coordinator.job import Phase

if TYPE_CHECKING:
    from deadpool.sim.machine import Machine
    from deadpool.sim.process import Process
    from deadpool.sim.world import World

T = TypeVar("T")
PHASES = (
    "forming",
    "protected",
    "undetected",
    "fencing",
    "waiting",
    "preparing",
    "connecting",
    "redo",
    "unprotected",
    "headless",
    "salvaging",
)
"""Of a job, in the order of a recovery: a fault is there but not noticed; running, but not a step since; running, but
not every copy is there yet; nobody is in office; and what is left is written to disk."""


def alive(world: World) -> list[Machine]:
    return [machine for machine in world.machines.values() if machine.alive]


def seated(world: World) -> list[Machine]:
    return [machine for machine in alive(world) if _has_seat(world, machine)]


def spares(world: World) -> list[Machine]:
    return [machine for machine in alive(world) if not _has_seat(world, machine)]


def _has_seat(world: World, machine: Machine) -> bool:
    """Another machine of that name may have one that is gone by now."""
    return machine.name in world.coordinator.seats and world.machine_at(machine.name) is machine


def processes(world: World) -> list[Process]:
    return [p for machine in alive(world) for p in machine.processes.values() if p.alive]


def pick(world: World, among: list[T], count: int = 1) -> list[T]:
    return world.rng.sample(among, min(count, len(among)))


def phase_of(world: World) -> str:
    """Where the job stands."""
    coordinator = world.coordinator
    if not world.present.alive or not world.present.office.is_leader:
        return "headless"
    if coordinator.phase is not Phase.RUNNING:
        return str(coordinator.phase.value)
    if any(world.machine_at(node).fallen for node in coordinator.seats):
        return "undetected"
    if world.steps_since_go == 0:
        return "redo"
    return "protected" if coordinator.commits.protected else "unprotected"
