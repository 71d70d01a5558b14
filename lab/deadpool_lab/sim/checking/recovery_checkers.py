"""Checkers of recoveries: no step lost, progress made, rehearsals served.

`DrainChecker`: Checker (drain): a node that leaves on purpose, or copies that are placed anew, cost no step.

`LossBound`: Checker (j): no more steps are lost than the loss bound allows.

Completed steps lost <= k + floor((L1 + skew) / T). Without the division: a version that all ranks have reached, that
is captured, and that no rank missed is committed at the latest L1 later, and then only newer versions can be lost.
L1, the time from the end of a step until the last holder has stored it, is known here, since the world is made with
it. The bound holds where nothing went wrong for that long.

`ProgressChecker`: a job that ends because it makes no progress: not for want of a copy that is there.

It belongs to checker (g). In the safety phase sources may be out of reach whenever they are asked, so only what
happens after faults have ended counts.

`RehearsalChecker`: Checker (rehearsals): a spare that was told to rehearse a rank gets what it needs for it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from deadpool.protocol.causes import FaultKind
from deadpool.protocol.identity import Version
from deadpool.protocol.messages import Permit
from deadpool_lab.sim.checking.holdings import Holdings
from deadpool_lab.sim.checking.violation import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from deadpool_lab.sim.process import Process
    from deadpool_lab.sim.world import World


class DrainChecker:
    """Follows the coordinator's events. A fault or a takeover during the handover excuses steps that are redone."""

    def __init__(self) -> None:
        self._undisturbed = False

    def on_event(self, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "handover" | "reconfiguration":
                self._undisturbed = True
            case "fault" | "took_over" | "corruption_suspected":
                self._undisturbed = False
            case "planned":
                if self._undisturbed and detail["lost_steps"]:
                    fail("drain", f"nothing failed, and {detail['lost_steps']} steps are done again")
                self._undisturbed = False


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


SETTLES_S = 5.0
"""A fetch that began before faults ended has failed by then."""
ATTEMPTS = 2
"""One may find a copy damaged. The next one knows of it."""


class ProgressChecker:
    def __init__(self, world: World) -> None:
        self._world, self._holdings = world, Holdings(world)
        self._unread: Counter[int] = Counter()  # by rank: fetches that failed since a version was protected

    def on_event(self, what: str, detail: dict[str, Any]) -> None:
        match what:
            case "fault" if self._world.clock.now > self._world.options.calm_s + SETTLES_S:
                self._unread.update(detail["ranks"] if detail["kind"] == FaultKind.UNREAD.value else ())
            case "protected":
                self._unread.clear()
            case "no_progress":
                for rank in [rank for rank, count in self._unread.items() if count >= ATTEMPTS]:
                    self._check_lost(rank)

    def _check_lost(self, rank: int) -> None:
        watermark = self._world.coordinator.commits.permit.watermark
        if watermark is None or self._world.options.replicated:
            return
        if where := self._holdings.where_intact(rank, watermark):
            fail("g", f"the job ends, since no source gave rank {rank} its snapshot; {watermark} of it is {where}")


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
