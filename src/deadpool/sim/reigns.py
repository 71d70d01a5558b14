"""What happens to coordinators in the safety phase: they die and return, stall, and are cut off from some machines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from deadpool.sim.options import FaultPlan

if TYPE_CHECKING:
    from deadpool.sim.hosts import Host
    from deadpool.sim.world import World

AWAY_S = 10.0
CUT_S = 20.0
STALL_S = 8.0


class Reigns:
    def __init__(self, world: World) -> None:
        self._world = world
        self._healing: list[tuple[str, str]] = []  # cuts that end with the safety phase at the latest
        self.struck = 0

    def strike(self, plan: FaultPlan) -> None:
        world, host = self._world, self._world.present
        if world.calm or world.outcome is not None or not host.alive:
            return
        self.struck += 1
        world.checkers.disturbed()
        acts: dict[str, Callable[[], None]] = {
            "die": partial(self._kill, host),
            "stall": partial(host.stall, STALL_S * world.rng.random()),
            "cut": partial(self._cut, host, [True, False]),
            "half": partial(self._cut, host, [world.rng.random() < 0.5]),
        }
        acts[plan.kind]()

    def end(self) -> None:
        """Peace: everybody is there, and everybody can be reached who was not lost for good."""
        self._world.cuts -= set(self._healing)
        for host in self._world.hosts:
            self._return(host)

    def _kill(self, host: Host) -> None:
        """One that has no standby comes back; of others some do."""
        host.die()
        if not self._world.options.standbys or self._world.rng.random() < 0.5:
            self._world.after(AWAY_S, partial(self._return, host))

    def _return(self, host: Host) -> None:
        if not host.alive and self._world.outcome is None:
            host.start(self._world.charter, founds=False)
            host.begin()

    def _cut(self, host: Host, directions: list[bool]) -> None:
        """A single coordinator would lose the job with too many machines; several have to sort it out."""
        world = self._world
        names = sorted(name for name, machine in world.machines.items() if machine.alive) or ["nobody"]
        count = world.rng.randint(1, len(names)) if world.options.standbys else 1
        cuts = []
        for name in world.rng.sample(names, min(count, len(names))):
            cuts += [(name, host.name) if upwards else (host.name, name) for upwards in directions]
        fresh = [cut for cut in cuts if cut not in world.cuts]
        world.tell("world", "cut off", {"links": " ".join(f"{a}>{b}" for a, b in fresh)})
        world.cuts |= set(fresh)
        self._healing += fresh
        world.after(CUT_S, lambda: world.cuts.difference_update(fresh))
