"""Checker (j): no more steps are lost than the loss bound allows.

Completed steps lost <= k + floor((L1 + skew) / T). Without the division: a version that all ranks have reached, that is
captured, and that no rank missed is committed at the latest L1 later, and then only newer versions can be lost. L1, the
time from the end of a step until the last holder has stored it, is known here, since the world is made with it. The
bound holds where nothing went wrong for that long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Permit

if TYPE_CHECKING:
    from collections.abc import Callable

    from deadpool_lab.sim.world import World

SLOW_PUSH_S = 4.0
NEWS_S = 1.0
"""Time from the last copy to its permit, and from a rank to its agent: a message may take twenty times as long."""


class LossBound:
    def __init__(self, world: World) -> None:
        self._world = world
        self._arrivals: dict[tuple[str, int], int] = {}
        self._reached: dict[tuple[str, int], float] = {}  # when the last rank completed it
        self._quiet_since = 0.0

    @property
    def _bound_s(self) -> float:
        options, placement = self._world.options, self._world.coordinator.commits.placement
        at_first = options.nodes if options.scheme or options.coded else options.holders + options.adaptive
        holders = max(at_first, *map(len, placement.holders), 1)  # an operator may have asked for more
        copies_s = 2 * max(0.5, options.copy_s) + options.push_s * holders + SLOW_PUSH_S
        return copies_s + 100 * options.latency_s + NEWS_S

    @property
    def _is_bounded(self) -> bool:
        """There is no bound where streams fail or come late."""
        options = self._world.options
        return not (options.push_failure or options.late or options.give_up)

    def on_step(self, version: Version) -> None:
        key = (str(version.generation), version.number)
        self._arrivals[key] = self._arrivals.get(key, 0) + 1
        if self._arrivals[key] == self._world.layout.world_size:
            self._reached[key] = self._world.clock.now

    def on_disturbance(self) -> None:
        self._quiet_since = self._world.clock.now

    def overdue(self, permit: Permit, is_wanted: Callable[[int], bool]) -> int | None:
        """A version of this generation that should be committed by now."""
        now, bound_s = self._world.clock.now, self._bound_s
        if not self._is_bounded or now - self._quiet_since < 2 * bound_s:
            return None
        made_in, watermark = str(permit.generation), permit.watermark.number if permit.watermark else -1
        late = [
            number
            for (each, number), reached in self._reached.items()
            if each == made_in and number > watermark and max(reached, self._quiet_since + bound_s) + bound_s < now
        ]
        return next((number for number in sorted(late) if is_wanted(number)), None)
