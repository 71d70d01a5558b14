"""Checker (rehearsals): a spare that was told to rehearse a rank gets what it needs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool_lab.sim.checking.violation import fail

if TYPE_CHECKING:
    from deadpool_lab.sim.process import Process
    from deadpool_lab.sim.world import World

LONG_S = 10.0
"""Enough for a rank to come to its loop and for its recording to arrive, once faults have ended."""


class RehearsalChecker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._since = 0.0  # when the job went last, or had another coordinator

    def on_event(self, what: str) -> None:
        match what:
            case "go" | "took_over":
                self._since = self._world.clock.now
            case "finished":
                for node in self._world.coordinator.members:
                    for process in self._world.machine_at(node).processes.values():
                        self._check(process)

    def _check(self, process: Process) -> None:
        """Checks the end of a job that had time enough without faults."""
        world = self._world
        if process.alive and process.seating.awaits_recording:
            waited_s = world.clock.now - max(process.seating.ordered_at, self._since, world.options.calm_s)
            if waited_s > LONG_S:
                fail("rehearsals", f"{process.name} has waited {waited_s:.0f} s for the recording of its rank")
