"""A kind of fault, and how a seed draws from it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
