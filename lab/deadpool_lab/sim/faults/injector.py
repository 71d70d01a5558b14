"""Injects the faults that a seed has drawn, at their times or after an event, and counts them by phase."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from deadpool_lab.sim.faults import BY_KIND
from deadpool_lab.sim.faults.fault import TIME, FaultPlan, phase_of

if TYPE_CHECKING:
    from deadpool_lab.sim.world import World


class Injector:
    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[str, list[FaultPlan]] = {}
        self.hit: Counter[tuple[str, str]] = Counter()  # by kind and phase

    def schedule(self) -> None:
        for plan in self._world.options.faults:
            if plan.when == TIME:
                self._world.clock.at(plan.after_s, partial(self._inject, plan))
            else:
                self._waiting.setdefault(plan.when, []).append(plan)
        self._world.on_event = self._on_event

    def _on_event(self, what: str) -> None:
        """One fault follows each event of that name, so that faults with the same trigger do not come at once."""
        if self._waiting.get(what):
            plan = self._waiting[what].pop(0)
            self._world.clock.after(plan.after_s, partial(self._inject, plan))

    def _inject(self, plan: FaultPlan) -> None:
        world = self._world
        if world.calm or world.outcome is not None:
            return
        if world.clock.now < world.options.quiet_s:
            world.clock.after(world.options.quiet_s, partial(self._inject, plan))
            return
        phase = phase_of(world)
        if BY_KIND[plan.kind].inject(world):
            self.hit[plan.kind, phase] += 1
