"""What a coordinator takes over: the view of a job as its nodes report to it. Values, and a pure function to them.

Either every seat of the newest plan reports that it runs, and then the job simply goes on under the new coordinator;
or something is missing, and then what is known is enough to fence and to plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.placement import NOWHERE, Placement
from deadpool.protocol.effects import FromAgent
from deadpool.protocol.identity import NO_GENERATION, Generation, Version
from deadpool.protocol.messages import Copy, Ended, Finished, Join, Permit, TakeoverReport, TrainerLost
from deadpool.protocol.quorum import Electorate, electorates, newest_plan
from deadpool.protocol.topology import Layout, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredView:
    newest: Generation  # that anybody has heard of, if only in a fence
    plan: Generation  # the newest that anybody was seated in
    seats: tuple[str | None, ...]  # the node at each position; None: it did not report
    electorates: tuple[Electorate, ...]
    unseated: tuple[str, ...]  # were too late to report to their seat, or hold one that is another's where all run
    joins: Mapping[str, Join]
    takeover_reports: Mapping[str, TakeoverReport]
    is_running: bool  # every seat is there, and has gone
    placement: Placement  # NOWHERE: not all of it is known

    @property
    def _seated(self) -> list[TakeoverReport]:
        return [self.takeover_reports[node] for node in self.seats if node is not None]

    @property
    def _foremost(self) -> TakeoverReport | None:
        """Who has heard the newest permit. They are in one order: each keeps no less than the one before."""
        permitted = [t for t in self.takeover_reports.values() if t.permit is not None]
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
        return [(node, copy) for node, t in self.takeover_reports.items() for copy in t.inventory.own]

    @property
    def held(self) -> list[tuple[str, Copy]]:
        return [(node, copy) for node, t in self.takeover_reports.items() for copy in t.inventory.held]

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
                trainers=self.takeover_reports[node].trainers if node in self.takeover_reports else (),
                quarantined=join.footing.quarantined,
            )
            for node, join in self.joins.items()
            if node not in self.unseated
        ]

    def unheard(self) -> list[FromAgent]:
        """What a coordinator would have been told in this generation. Who has ended did so before others were lost."""
        said: list[FromAgent] = []
        for node in (node for node in self.seats if node is not None):
            takeover_report, generation = self.takeover_reports[node], self.plan
            finished = [Finished(generation=generation, rank=rank) for rank in takeover_report.finished]
            ended = [Ended(generation=generation, rank=rank, code=code) for rank, code in takeover_report.ended]
            said += [FromAgent(node=node, message=message) for message in (*finished, *ended)]
        for node in (node for node in self.seats if node is not None):
            for rank, reason in self.takeover_reports[node].lost:
                lost = TrainerLost(generation=self.plan, trainer="", rank=rank, reason=reason)
                said.append(FromAgent(node=node, message=lost))
        return said


def _age_of_permit(takeover_report: TakeoverReport) -> tuple[Generation, int, int]:
    permit = takeover_report.permit
    assert permit is not None
    return (permit.generation, permit.keep_from, permit.schedule.start)


def take_over(
    layout: Layout, joins: Mapping[str, Join], takeover_reports: Mapping[str, TakeoverReport]
) -> RecoveredView:
    footings = {node: takeover_report.footing for node, takeover_report in takeover_reports.items()}
    plan = newest_plan(footings.values())
    seats, superseded = _seats(layout, takeover_reports)
    late = [node for node, join in joins.items() if join.footing.position is not None and node not in takeover_reports]
    seated = [takeover_reports[node] for node in seats if node is not None]
    is_running = len(seated) == layout.positions and all(_runs(takeover_report, plan) for takeover_report in seated)
    return RecoveredView(
        newest=max((footing.generation for footing in footings.values()), default=NO_GENERATION),
        plan=plan,
        seats=seats,
        electorates=electorates(
            layout.positions, {(node, joins[node].incarnation): footings[node] for node in footings}
        ),
        unseated=(*superseded, *late) if is_running else tuple(late),
        joins=joins,
        takeover_reports=takeover_reports,
        is_running=is_running,
        placement=_placement(seats, plan, joins, takeover_reports),
    )


def _runs(takeover_report: TakeoverReport, plan: Generation) -> bool:
    footing = takeover_report.footing
    return takeover_report.running and footing.generation == footing.planned == plan


def _seats(
    layout: Layout, takeover_reports: Mapping[str, TakeoverReport]
) -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """Who was seated there by the newest plan, and whose seat was given to another: also if that one is not here. Go
    needs that every seat has heard the plan; whose plan is older than the last that went had none in it.

    Those who sat there in the last generation that went come before those whom a plan seats that nobody has heard Go
    of: nothing was computed by the latter, and without a majority of the former there will be no plan."""
    seats: list[str | None] = [None] * layout.positions
    superseded = []
    went = max(
        (takeover_report.footing.electorate for takeover_report in takeover_reports.values()), default=NO_GENERATION
    )

    def claim(item: tuple[str, TakeoverReport]) -> tuple[bool, Generation]:
        return (item[1].footing.seat_in(went) is not None, item[1].footing.planned)

    for node, takeover_report in sorted(takeover_reports.items(), key=claim, reverse=True):
        footing = takeover_report.footing
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
    takeover_reports: Mapping[str, TakeoverReport],
) -> Placement:
    """As the nodes were told it. Where one is missing it is made anew, as without racks it would come out anyway."""
    footings = [takeover_reports[node].footing if node is not None else None for node in seats]
    by_plan = [f is not None and (f.planned, f.position) == (plan, index) for index, f in enumerate(footings)]
    known = [node for node, seated in zip(seats, by_plan, strict=True) if node is not None and seated]
    if len(known) < len(seats):
        return NOWHERE
    position = {node: index for index, node in enumerate(known)}
    return Placement(
        racks=tuple(joins[node].rack for node in known),
        holders=tuple(tuple(position[holder] for holder in takeover_reports[node].holders) for node in known),
    )
