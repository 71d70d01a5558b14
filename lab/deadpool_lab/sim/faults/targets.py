"""The machines and processes that a fault can hit, and the phase of a recovery that it hits."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from deadpool.protocol.coordinator.job import Phase

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.process import Process
    from deadpool_lab.sim.world import World

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
"""Phases of a job, in the order of a recovery. undetected: a fault was not noticed yet; redo: the job runs, but has not
completed a step since; unprotected: not every copy is there yet; headless: there is no leader; salvaging: what is left
is written to disk."""


def alive(world: World) -> list[Machine]:
    return [machine for machine in world.machines.values() if machine.alive]


def seated(world: World) -> list[Machine]:
    return [machine for machine in alive(world) if _has_seat(world, machine)]


def spares(world: World) -> list[Machine]:
    return [machine for machine in alive(world) if not _has_seat(world, machine)]


def _has_seat(world: World, machine: Machine) -> bool:
    """A seat of that name may belong to an earlier machine."""
    return machine.name in world.coordinator.seats and world.machine_at(machine.name) is machine


def processes(world: World) -> list[Process]:
    return [p for machine in alive(world) for p in machine.processes.values() if p.alive]


def pick(world: World, among: list[T], count: int = 1) -> list[T]:
    return world.rng.sample(among, min(count, len(among)))


def phase_of(world: World) -> str:
    """The phase that the job is in."""
    coordinator = world.coordinator
    if not world.leading_host.alive or not world.leading_host.leadership.is_leader:
        return "headless"
    if coordinator.phase is not Phase.RUNNING:
        return str(coordinator.phase.value)
    if any(world.machine_at(node).is_lost for node in coordinator.seats):
        return "undetected"
    if world.steps_since_go == 0:
        return "redo"
    return "protected" if coordinator.commits.protected else "unprotected"
