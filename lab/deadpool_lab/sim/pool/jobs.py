"""A job as far as a pool sees it: it lacks nodes, and seats the spares that have joined, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.messages import PoolJob

if TYPE_CHECKING:
    from deadpool_lab.sim.pool.machines import SimAgent
    from deadpool_lab.sim.pool.world import PoolWorld


class SimJob:
    def __init__(self, world: PoolWorld, entry: PoolJob) -> None:
        self.world, self.entry, self.name = world, entry, entry.name
        self.spares: list[SimAgent] = []
        self.seats: list[SimAgent] = []  # on machines of the pool
        self.lacks = 0  # nodes that are lost and not replaced
        self.chosen: list[SimAgent] = []  # planned, and not seated yet
        self.ended = False

    def lose_own_node(self) -> None:
        """One that is no machine of the pool."""
        self.lacks += 1
        self._plan()

    def on_join(self, agent: SimAgent) -> None:
        if self.ended:
            agent.end()
            return
        self.spares.append(agent)
        self._plan()

    def on_seated(self, agent: SimAgent) -> None:
        if agent in self.chosen:
            self.chosen.remove(agent)
            self.seats.append(agent)
            self.lacks -= 1

    def on_lost(self, agent: SimAgent) -> None:
        for among in (self.spares, self.chosen):
            if agent in among:
                among.remove(agent)
        if agent in self.seats:
            self.seats.remove(agent)
            self.lacks += not self.ended
        self._plan()

    def end(self) -> None:
        self.ended = True
        for agent in [*self.spares, *self.chosen, *self.seats]:
            self.world.after(0.5, agent.end)

    def _plan(self) -> None:
        while not self.ended and self.lacks > len(self.chosen) and self.spares:
            agent = self.spares.pop(0)
            self.chosen.append(agent)
            if self.world.rng.random() < 0.7:  # else it joined too late to be told with the fence
                self.world.after(0.05, agent.on_needed)
            self.world.after(0.5, lambda agent=agent: self._order(agent))  # type: ignore[misc]

    def _order(self, agent: SimAgent) -> None:
        """Carries out a plan that sometimes seats another agent than was told."""
        if self.world.rng.random() < 0.1 and agent in self.chosen:
            self.chosen.remove(agent)
            self.spares.append(agent)
            agent.on_plan(seats=False)
            self._plan()
        elif agent in self.chosen:
            agent.on_plan(seats=True)
