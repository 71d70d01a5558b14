"""Taking over from a coordinator that is gone: rule 18, one coordinator per term.

`RecoveredView` is the job as its nodes report it. Either every seat of the newest plan reports that it runs, and then
the job simply goes on under the new coordinator; or something is missing, and then what is known is enough to fence and
to plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from deadpool.protocol.causes import FaultKind
from deadpool.protocol.coordinator.commits.ledger import Ledger
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.membership.run_monitor import RunMonitor
from deadpool.protocol.coordinator.protection.redundancy import Redundancy
from deadpool.protocol.coordinator.recovery.fault_history import FaultHistory, ObservedFault
from deadpool.protocol.coordinator.recovery.faults import Faults
from deadpool.protocol.coordinator.recovery.placement import NO_PLACEMENT, Placement
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.coordinator.recovery.resumption import Resumption
from deadpool.protocol.identity import NO_GENERATION, Generation, Layout, Schedule, Version
from deadpool.protocol.inputs import FromAgent
from deadpool.protocol.messages import Ended, Finished, Join, Permit, TakeoverReport
from deadpool.protocol.quorum import Electorate, electorates, newest_plan
from deadpool.protocol.schemes import Scheme


class Takeover:
    def __init__(
        self,
        job: JobState,
        monitor: RunMonitor,
        history: FaultHistory,
        rehearsals: Rehearsals,
        faults: Faults,
        resumption: Resumption,
    ) -> None:
        self._job, self._monitor, self._history = job, monitor, history
        self._rehearsals, self._faults, self._resumption = rehearsals, faults, resumption

    def take_over(self, view: RecoveredView, now: float) -> None:
        job = self._job
        job.take_over(view.members(now), view.electorates, causes=view.newest.n)
        job.begin_generation(view.generation, cause=f"term-{job.term}")
        job.take_up_protection(view.scheme, view.placement)
        if view.permit is not None:
            job.commits.take_over(view.permit, view.resume, view.schedules, view.ledger(job.layout))
        self._monitor.end_generation()
        alone_s = round(view.alone_s, 3)
        job.out.emit("took_over", term=job.term, running=view.is_running, nodes=sorted(job.members), alone_s=alone_s)
        for member in job.members.values():
            if member.quarantined:
                self._history.quarantine.add(member.node, "found by the coordinator before")
        for node in view.unseated:
            job.out.drop(node)  # it will call again, and is taken back then
        if view.is_running:
            self._resumption.continue_running(tuple(node for node in view.seats if node is not None), now)
        else:
            self._recover(view, now)

    def _recover(self, view: RecoveredView, now: float) -> None:
        """A node is lost, or a recovery was under way: the nodes that are there are fenced, and a plan is made."""
        job = self._job
        lost = [position for position, node in enumerate(view.seats) if node is None]
        job.enter_without_deadline(Phase.PREPARING)
        kind = FaultKind.NODE if lost else FaultKind.TAKEOVER
        reason = f"nothing was heard from positions {', '.join(map(str, lost))}" if lost else "a recovery was cut short"
        for position in lost:
            job.silent.fell_silent(f"the node at position {position}")
        ranks = tuple(rank for position in lost for rank in job.layout.ranks_at(position))
        fault = ObservedFault(kind=kind, reason=reason, ranks=ranks, since_s=round(view.alone_s, 3))
        self._faults.recover(fault, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredView:
    newest: Generation  # that any node has heard of, if only in a fence
    plan: Generation  # the newest that any node was seated in
    seats: tuple[str | None, ...]  # the node at each position; None: it did not report
    electorates: tuple[Electorate, ...]
    unseated: tuple[str, ...]  # nodes that reported too late, or whose seat is another node's where all run
    joins: Mapping[str, Join]
    reports: Mapping[str, TakeoverReport]
    is_running: bool  # every seat is there, and has heard Go
    placement: Placement  # NO_PLACEMENT: not all of it is known
    alone_s: float  # since the coordinator before this one was lost

    @property
    def _seated(self) -> list[TakeoverReport]:
        return [self.reports[node] for node in self.seats if node is not None]

    @property
    def _newest_permitted(self) -> TakeoverReport | None:
        """Returns the report of a node that has heard the newest permit. Permits are in one order: each keeps no less
        than the one before."""
        permitted = [report for report in self.reports.values() if report.permit is not None]
        return max(permitted, key=_age_of_permit, default=None)

    @property
    def permit(self) -> Permit | None:
        return self._newest_permitted.permit if self._newest_permitted else None

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return self._newest_permitted.schedules if self._newest_permitted else ()

    @property
    def resume(self) -> Version | None:
        return next((report.resume for report in self._seated if report.footing.planned == self.plan), None)

    @property
    def scheme(self) -> Scheme | None:
        """The scheme of the newest plan; the coordinator that made it may have chosen another than the user's."""
        return next((report.scheme for report in self._seated if report.footing.planned == self.plan), None)

    @property
    def generation(self) -> Generation:
        """The one that all are in, also where the last coordinator had begun to fence another node; or one that no node
        is past."""
        return self.plan if self.is_running else self.newest

    def ledger(self, layout: Layout) -> Ledger:
        """The copies that nodes report, where the job goes on with them."""
        if not self.is_running:
            return Ledger(layout, (), self.placement)
        ledger = Ledger(layout, tuple(node for node in self.seats if node), self.placement)
        ledger.missed = {n for report in self._seated if report.footing.planned == self.plan for n in report.missed}
        for node, report in self.reports.items():
            for copy in report.inventory.own:
                if self.seats[layout.position_of(copy.seal.rank)] == node:
                    ledger.add_sealed(copy)
            for copy in report.inventory.held:
                ledger.add_stored(copy.seal.rank, node, copy.seal.version)
            for joint in report.inventory.joint:
                ledger.add_joint(joint, node)
        return ledger

    def members(self, now: float) -> list[Member]:
        """All nodes that are there. A node whose seat is no longer its own is fenced like the others, and a spare."""
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
                trainers=self.reports[node].trainers if node in self.reports else (),
                quarantined=join.footing.quarantined,
            )
            for node, join in self.joins.items()
            if node not in self.unseated
        ]

    def missed_messages(self) -> list[FromAgent]:
        """What nodes would have told a coordinator in this generation. Ranks that ended did so before others were
        lost."""
        messages: list[FromAgent] = []
        seated = [node for node in self.seats if node is not None]
        for node in seated:
            report, generation = self.reports[node], self.plan
            messages += [
                FromAgent(node=node, message=Finished(generation=generation, rank=rank)) for rank in report.finished
            ]
            messages += [
                FromAgent(node=node, message=Ended(generation=generation, rank=rank, code=code))
                for rank, code in report.ended
            ]
        for node in seated:
            for lost in self.reports[node].lost:
                told = replace(lost, generation=self.plan, trainer="", unread=None)  # nobody is blamed for it any more
                messages.append(FromAgent(node=node, message=told))
        return messages


def _age_of_permit(report: TakeoverReport) -> tuple[Generation, int, int]:
    permit = report.permit
    assert permit is not None
    return (permit.generation, permit.keep_from, permit.schedule.start)


def recover_view(
    layout: Layout,
    joins: Mapping[str, Join],
    reports: Mapping[str, TakeoverReport],
    *,
    redundancy: Redundancy,
    alone_s: float,
) -> RecoveredView:
    footings = {node: report.footing for node, report in reports.items()}
    plan = newest_plan(footings.values())
    seats, superseded = _seats(layout, reports)
    late = [node for node, join in joins.items() if join.footing.position is not None and node not in reports]
    seated = [reports[node] for node in seats if node is not None]
    is_running = len(seated) == layout.positions and all(_runs(report, plan) for report in seated)
    voters = {(node, joins[node].incarnation): footing for node, footing in footings.items()}
    return RecoveredView(
        newest=max((footing.generation for footing in footings.values()), default=NO_GENERATION),
        plan=plan,
        seats=seats,
        electorates=electorates(layout.positions, voters),
        unseated=(*superseded, *late) if is_running else tuple(late),
        joins=joins,
        reports=reports,
        is_running=is_running,
        placement=_placement(seats, plan, joins, reports, redundancy),
        alone_s=alone_s,
    )


def _runs(report: TakeoverReport, plan: Generation) -> bool:
    footing = report.footing
    return report.running and footing.generation == footing.planned == plan


def _seats(layout: Layout, reports: Mapping[str, TakeoverReport]) -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """The node that the newest plan seats at each position, and the nodes whose seat was given to another node, also
    where that other node is not here. Go needs that every seat has heard the plan, so a node whose plan is older than
    the last generation that went had no seat in it.

    A node that sat there in the last generation that went comes before a node that is seated by a plan of which no Go
    was heard: the latter has computed nothing, and without a majority of the former there will be no plan."""
    seats: list[str | None] = [None] * layout.positions
    superseded = []
    went = max((report.footing.electorate for report in reports.values()), default=NO_GENERATION)

    def claim(item: tuple[str, TakeoverReport]) -> tuple[bool, Generation]:
        return (item[1].footing.seat_in(went) is not None, item[1].footing.planned)

    for node, report in sorted(reports.items(), key=claim, reverse=True):
        footing = report.footing
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
    reports: Mapping[str, TakeoverReport],
    redundancy: Redundancy,
) -> Placement:
    """Returns the placement as the nodes were told it. Where one node is missing it is made anew: without racks it
    comes out the same.
    """
    footings = [reports[node].footing if node is not None else None for node in seats]
    by_plan = [f is not None and (f.planned, f.position) == (plan, index) for index, f in enumerate(footings)]
    known = [node for node, seated in zip(seats, by_plan, strict=True) if node is not None and seated]
    if len(known) < len(seats):
        return NO_PLACEMENT
    position = {node: index for index, node in enumerate(known)}
    holders = tuple(tuple(position[holder] for holder in reports[node].holders) for node in known)
    groups = tuple(dict.fromkeys(group for node in known if (group := reports[node].group) is not None))
    scheme = reports[known[0]].scheme
    extra = frozenset(p for p, holding in enumerate(holders) if len(holding) > scheme.copies)
    racks = tuple(joins[node].rack for node in known)
    found = Placement(racks=racks, holders=holders, scheme=scheme, extra=extra, groups=groups)
    return redundancy.taken_over(found) if groups else found
