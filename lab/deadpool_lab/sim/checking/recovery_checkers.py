"""Checkers of copies and of recoveries.

Copies: where they are written, where they are sent, and what a newcomer gets.

Recoveries: checker (drain), a node that leaves on purpose, or copies that are placed anew, cost no step; checker (j),
no more steps are lost than the loss bound allows; a part of checker (g), a job that ends because it makes no progress
did not end for want of a copy that is there; and checker (rehearsals), a spare that was told to rehearse a rank gets
what it needs for it.

The loss bound: completed steps lost <= k + floor((L1 + skew) / T). Without the division: a version that all ranks have
reached, that is captured, and that no rank missed is committed at the latest L1 later, and then only newer versions can
be lost. L1, the time from the end of a step until the last holder has stored it, is known here, since the world is made
with it. The bound holds where nothing went wrong for that long. For (g), sources may be out of reach whenever they are
asked in the safety phase, so only what happens after faults have ended counts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from deadpool.protocol.causes import FaultKind
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Permit, Plan, SlotRef
from deadpool_lab.sim.checking import fail
from deadpool_lab.sim.checking.holdings import Holdings

if TYPE_CHECKING:
    from collections.abc import Callable

    from deadpool_lab.sim.machine import Machine
    from deadpool_lab.sim.process import Process
    from deadpool_lab.sim.world import World


class CopyCheckers:
    def __init__(self, world: World) -> None:
        self._world = world
        self._holdings = Holdings(world)
        self._watermarks: dict[Generation, Version] = {}  # the newest that any node was told of
        self.last_seats: tuple[Machine, ...] = ()  # of the last generation that went, or of the founding one

    def check_one_writer(self, node: str, slot: SlotRef, writer: object) -> None:
        if writer is not None:
            fail("l", f"{slot} of {node} has two writers")

    def check_overwrite(self, node: str, rank: int, version: Version, permit: Permit | None) -> None:
        if permit is None or version == permit.watermark or version.number >= permit.keep_from:
            fail("e", f"{node} overwrites {version} of rank {rank} under {permit}")
        elif version == self._watermarks.get(permit.generation):
            fail("e", f"{node} overwrites {version} of rank {rank}, the newest that was committed, under {permit}")

    def on_permit_obeyed(self, permit: Permit) -> None:
        """From here on its watermark is kept until there is a newer one, under any coordinator."""
        watermark, newest = permit.watermark, self._watermarks.get(permit.generation)
        if watermark is not None and (newest is None or watermark.number > newest.number):
            self._watermarks[permit.generation] = watermark

    def check_floor_first(self, machine: Machine, rank: int, version: Version) -> None:
        """Rule 16 (floor first): a holder that lacks the floor is sent nothing newer."""
        floor = machine.arena.permit.watermark if machine.arena.permit else None
        seats = tuple(map(self._world.machine_at, self._world.coordinator.seats)) or self.last_seats
        home = seats[self._world.layout.position_of(rank)]
        if floor is None or version.number <= floor.number:
            return
        if not self._holdings.is_intact_at_home(home, rank, floor):
            return
        if (rank, floor) not in machine.arena.sealed.values():
            fail("rule 16", f"{machine.name} stores {version} of rank {rank} and lacks the floor {floor}")

    def check_sources(self, machine: Machine, plan: Plan) -> None:
        """Rule 14 (drop above the resume version): a seat has the resume version and the floor at home, or pulls them,
        or stands at the resume version and captures it."""
        standing = {live.rank for live in machine.frozen.live if live.clean and live.version == plan.resume}
        for order in plan.orders:
            kept = order.keep and order.rank in standing
            pulled = {fetch.copy.seal.version for fetch in order.fetch}
            for version in (plan.resume, plan.permit.watermark):
                home = (order.rank, version) in machine.arena.sealed.values()
                if version and not (home or version in pulled or (kept and version == plan.resume)):
                    fail("rule 14", f"{machine.name} is to seat rank {order.rank} without {version}")

    def check_placement(self, machine: Machine, plan: Plan) -> None:
        """Rule 17 (placement by seat), from what nodes are told: never the own node, and the own rack only if the
        others are full."""
        racks = self._world.options.rack_of
        names = [holder.node for holder in plan.holders]
        if plan.group is not None:
            self._check_group(machine, plan, names)
            return
        if plan.orders and machine.name in names:
            fail("rule 17", f"the copies of {machine.name} go to {names}")
        if plan.orders:
            self._check_count(machine, plan, names)
        seats = tuple(dict.fromkeys(self._world.coordinator.seats))  # one that carries ranks sits at several positions
        outside = [m for m in seats if racks(m) != racks(machine.name)]
        shared = [name for name in names if racks(name) == racks(machine.name)]
        roomy = len(names) <= len(outside) and len(seats) <= 2 * len(outside)
        if self._world.options.racks and shared and roomy:
            fail("rule 17", f"a copy of {machine.name} goes to {shared} in its own rack, {outside} are in others")

    def _check_count(self, machine: Machine, plan: Plan, names: list[str]) -> None:
        """Rule 28 (protection changes slowly and within bounds): as many holders as the scheme of the plan says, and
        one more only where a position is guarded. A plan that arrives late may be older than the placement known
        here."""
        layout, coordinator = self._world.layout, self._world.coordinator
        least = min(plan.scheme.copies, layout.positions - 1)
        most = min(plan.scheme.copies + self._world.options.adaptive, layout.positions - 1)
        if plan.generation == coordinator.generation and coordinator.is_full:
            guarded = layout.position_of(plan.orders[0].rank) in coordinator.commits.placement.extra
            most = min(plan.scheme.copies + guarded, layout.positions - 1)
            least = most
        if not least <= len(names) <= most:
            fail("rule 28", f"the copies of {machine.name} go to {names}: {least} to {most} are within bounds")

    def _check_group(self, machine: Machine, plan: Plan, names: list[str]) -> None:
        """The other members are other nodes, and no more of a rack are in one group than racks and parities make
        necessary. A plan that arrives late may be older than the seats that are known here."""
        group, coordinator = plan.group, self._world.coordinator
        assert group is not None
        if machine.name in names or len(set(names)) != len(group.positions) - 1:
            fail("rule 17", f"{machine.name} is coded with {names}, its group has {len(group.positions)} nodes")
        if plan.generation != coordinator.generation:
            return
        may_be_fewer = not self._world.options.coded or self._world.checkers.protection.was_asked
        if group.parities < self._world.layout.holders and not may_be_fewer:
            fail("rule 28", f"{machine.name} is coded with {group.parities} parities, which survive fewer losses")
        members = [coordinator.seats[position] for position in group.positions]
        if sorted([machine.name, *names]) != sorted(members):
            fail("rule 17", f"{machine.name} is coded with {names}, its group is {members}")
        self._check_racks_of_groups()

    def _check_racks_of_groups(self) -> None:
        """The loss of a rack takes no more members of a group than its parities make up for, as far as that is
        possible."""
        coordinator = self._world.coordinator
        groups, racks = coordinator.commits.placement.groups, self._world.options.rack_of
        if not self._world.options.racks or len(set(map(racks, coordinator.seats))) < 2 or not groups:
            return
        beyond = 0
        for group in groups:
            inside = Counter(racks(coordinator.seats[position]) for position in group.positions)
            beyond += sum(max(0, count - group.parities) for count in inside.values())
        all_racks = Counter(map(racks, coordinator.seats))
        unavoidable = sum(max(0, count - len(groups) * groups[0].parities) for count in all_racks.values())
        if beyond > unavoidable:
            fail("rule 17", f"{beyond} members of groups would be lost with their rack beyond repair: {groups}")


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
