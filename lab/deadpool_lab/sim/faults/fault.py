"""What a fault is, and what it can hit.

`FaultPlan` and `FaultKind`: a kind of fault, and how a seed draws from it.

The machines and processes that a fault can hit, and the phase of a recovery that it hits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from deadpool.protocol.coordinator.job import Phase

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.process import Process
    from deadpool_lab.sim.world import World


TIME = "time"
WITHIN_S = {
    "fault": 6.0,
    "fence": 1.5,
    "planned": 2.0,
    "prepared": 0.5,
    "go": 6.0,
    "took_over": 2.0,
    "awaiting_spare": 10.0,
    "drain": 6.0,
    "handover": 1.5,
    "left": 2.0,
    "shrunk": 20.0,
    "grown": 6.0,
    "finished": 4.0,
    "step_audit_ordered": 6.0,
}
"""Events of a coordinator that a fault can follow, with the longest time after them."""
ANY_TIME = (TIME, TIME, TIME, "fault", "fence", "fence", "planned", "prepared", "go")
"""The default choice of triggers: most faults come in a recovery from another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault: so long after the start, or after the next event of that name (a fault, a fence, a go)."""

    kind: str
    when: str
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    kind: str
    inject: Callable[[World], bool]
    chance: float = 0.1  # of being in a seed's mix
    most: int = 2  # times in one seed
    triggers: tuple[str, ...] = ANY_TIME
    drawn_as: str = ""  # its former name, so that seeds draw of it what they drew then

    def draw(self, seed: int, *, intensity: float, calm_s: float) -> list[FaultPlan]:
        """Each kind has its own random numbers, so a kind that is added later does not change what seeds draw of
        others."""
        rng = random.Random(f"{self.drawn_as or self.kind} {seed}")
        if rng.random() >= self.chance * intensity:
            return []
        return [self._plan(rng, calm_s) for _ in range(rng.randint(1, self.most))]

    def _plan(self, rng: random.Random, calm_s: float) -> FaultPlan:
        when = rng.choice(self.triggers)
        after_s = 1 + (calm_s - 1) * rng.random() if when == TIME else WITHIN_S[when] * rng.random() ** 2
        return FaultPlan(kind=self.kind, when=when, after_s=after_s)


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
