"""Checkers of copies: where they are written, where they are sent, and what a newcomer gets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Permit, Plan, SlotRef
from deadpool_lab.sim.checking.holdings import Holdings
from deadpool_lab.sim.checking.violation import fail

if TYPE_CHECKING:
    from deadpool_lab.sim.machine import Machine
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
