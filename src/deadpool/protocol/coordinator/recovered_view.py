"""What a coordinator inherits: the view of a job as its nodes testify to it. Values, and a pure function to them.

Either every seat of the newest plan testifies that it runs, and then the job simply goes on under the new coordinator;
or something is missing, and then what is known is enough to fence and to plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.placement import NOWHERE, Placement
from deadpool.protocol.effects import FromAgent
from deadpool.protocol.identity import NO_GENERATION, Generation, Version
from deadpool.protocol.messages import Copy, Ended, Finished, Join, Permit, Testimony, TrainerLost
from deadpool.protocol.quorum import Electorate, electorates, newest_plan
from deadpool.protocol.topology import Layout, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Estate:
    newest: Generation  # that anybody has heard of, if only in a fence
    plan: Generation  # the newest that anybody was seated in
    seats: tuple[str | None, ...]  # the node at each position; None: it did not testify
    electorates: tuple[Electorate, ...]
    unseated: tuple[str, ...]  # were too late to testify to their seat, or hold one that is another's where all run
    joins: Mapping[str, Join]
    testimonies: Mapping[str, Testimony]
    is_running: bool  # every seat is there, and has gone
    placement: Placement  # NOWHERE: not all of it is known

    @property
    def _seated(self) -> list[Testimony]:
        return [self.testimonies[node] for node in self.seats if node is not None]

    @property
    def _foremost(self) -> Testimony | None:
        """Who has heard the newest permit. They are in one order: each keeps no less than the one before."""
        permitted = [t for t in self.testimonies.values() if t.permit is not None]
        return max(permitted, key=_age_of_permit, default=None)

    @property
    def permit(self) -> Permit | None:
        return self._foremost.permit if self._foremost else None

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return self._foremost.schedules if self._foremost else ()

    @property
    def resume(self) -> Version | None:
        return next((t.resume for t in self._seated if t.footing.planned == self.plan), None)

    @property
    def missed(self) -> set[int]:
        return {number for t in self._seated if t.footing.planned == self.plan for number in t.missed}

    @property
    def own(self) -> list[tuple[str, Copy]]:
        return [(node, copy) for node, t in self.testimonies.items() for copy in t.inventory.own]

    @property
    def held(self) -> list[tuple[str, Copy]]:
        return [(node, copy) for node, t in self.testimonies.items() for copy in t.inventory.held]

    @property
    def generation(self) -> Generation:
        """That all are in, also if the last coordinator had begun to fence somebody else; or that nobody is past."""
        return self.plan if self.is_running else self.newest

    def members(self, now: float) -> list[Member]:
        """All who are there. One whose seat is no longer its own is fenced like everybody, and a spare."""
        positions = {node: position for position, node in enumerate(self.seats)}
        return [
            Member(
                node,
                join.incarnation,
                join.data,
                join.spare,
                heard=now,
                rack=join.rack,
                position=positions.get(node),
                has_run=not join.footing.is_new,
                trainers=self.testimonies[node].trainers if node in self.testimonies else (),
                quarantined=join.footing.quarantined,
            )
            for node, join in self.joins.items()
            if node not in self.unseated
        ]

    def unheard(self) -> list[FromAgent]:
        """What a coordinator would have been told in this generation. Who has ended did so before others were lost."""
        said: list[FromAgent] = []
        for node in (node for node in self.seats if node is not None):
            testimony, generation = self.testimonies[node], self.plan
            finished = [Finished(generation=generation, rank=rank) for rank in testimony.finished]
            ended = [Ended(generation=generation, rank=rank, code=code) for rank, code in testimony.ended]
            said += [FromAgent(node=node, message=message) for message in (*finished, *ended)]
        for node in (node for node in self.seats if node is not None):
            for rank, reason in self.testimonies[node].lost:
                lost = TrainerLost(generation=self.plan, trainer="", rank=rank, reason=reason)
                said.append(FromAgent(node=node, message=lost))
        return said


def _age_of_permit(testimony: Testimony) -> tuple[Generation, int, int]:
    permit = testimony.permit
    assert permit is not None
    return (permit.generation, permit.keep_from, permit.schedule.start)


def inherit(layout: Layout, joins: Mapping[str, Join], testimonies: Mapping[str, Testimony]) -> Estate:
    footings = {node: testimony.footing for node, testimony in testimonies.items()}
    plan = newest_plan(footings.values())
    seats, superseded = _seats(layout, testimonies)
    late = [node for node, join in joins.items() if join.footing.position is not None and node not in testimonies]
    seated = [testimonies[node] for node in seats if node is not None]
    is_running = len(seated) == layout.positions and all(_runs(testimony, plan) for testimony in seated)
    return Estate(
        newest=max((footing.generation for footing in footings.values()), default=NO_GENERATION),
        plan=plan,
        seats=seats,
        electorates=electorates(
            layout.positions, {(node, joins[node].incarnation): footings[node] for node in footings}
        ),
        unseated=(*superseded, *late) if is_running else tuple(late),
        joins=joins,
        testimonies=testimonies,
        is_running=is_running,
        placement=_placement(seats, plan, joins, testimonies),
    )


def _runs(testimony: Testimony, plan: Generation) -> bool:
    footing = testimony.footing
    return testimony.running and footing.generation == footing.planned == plan


def _seats(layout: Layout, testimonies: Mapping[str, Testimony]) -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """Who was seated there by the newest plan, and whose seat was given to another: also if that one is not here. Go
    needs that every seat has heard the plan; whose plan is older than the last that went had none in it.

    Those who sat there in the last generation that went come before those whom a plan seats that nobody has heard Go
    of: nothing was computed by the latter, and without a majority of the former there will be no plan."""
    seats: list[str | None] = [None] * layout.positions
    superseded = []
    went = max((testimony.footing.electorate for testimony in testimonies.values()), default=NO_GENERATION)

    def claim(item: tuple[str, Testimony]) -> tuple[bool, Generation]:
        return (item[1].footing.seat_in(went) is not None, item[1].footing.planned)

    for node, testimony in sorted(testimonies.items(), key=claim, reverse=True):
        footing = testimony.footing
        sat, planned = footing.seat_in(went), footing.planned
        position = sat if sat is not None else footing.position
        if position is not None and planned >= went and seats[position] is None:
            seats[position] = node
        elif position is not None:
            superseded.append(node)
    return tuple(seats), tuple(superseded)


def _placement(
    seats: tuple[str | None, ...],
    plan: Generation,
    joins: Mapping[str, Join],
    testimonies: Mapping[str, Testimony],
) -> Placement:
    """As the nodes were told it. Where one is missing it is made anew, as without racks it would come out anyway."""
    footings = [testimonies[node].footing if node is not None else None for node in seats]
    by_plan = [f is not None and (f.planned, f.position) == (plan, index) for index, f in enumerate(footings)]
    known = [node for node, seated in zip(seats, by_plan, strict=True) if node is not None and seated]
    if len(known) < len(seats):
        return NOWHERE
    position = {node: index for index, node in enumerate(known)}
    return Placement(
        racks=tuple(joins[node].rack for node in known),
        holders=tuple(tuple(position[holder] for holder in testimonies[node].holders) for node in known),
    )
