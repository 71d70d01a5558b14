"""From a plan to the first step after it: prepare, connect, go. And the way out, which ranks go together as well:
finished, ended."""

from __future__ import annotations

from typing import Any

from deadpool.protocol.coordinator.barrier import Milestones
from deadpool.protocol.coordinator.drain import Departures
from deadpool.protocol.coordinator.ending import Ending
from deadpool.protocol.coordinator.hang import Hangs
from deadpool.protocol.coordinator.job import Job, Phase
from deadpool.protocol.coordinator.members import Member, steps_lost
from deadpool.protocol.coordinator.planner import Blueprint
from deadpool.protocol.coordinator.recorded_collectives import RecordingCache
from deadpool.protocol.coordinator.rehearsals import Rehearsals
from deadpool.protocol.coordinator.silent_nodes import Absences
from deadpool.protocol.coordinator.spares import SpareWatch
from deadpool.protocol.messages import Connect, Go, Prepared, Release


class Resumption:
    def __init__(
        self,
        job: Job,
        *,
        departures: Departures,
        rehearsals: Rehearsals,
        recordings: RecordingCache,
        absences: Absences,
        hangs: Hangs,
        spares: SpareWatch,
        ending: Ending,
    ) -> None:
        self._job = job
        self._departures, self._absences, self._hangs, self._spares = departures, absences, hangs, spares
        self._rehearsals, self._recordings, self._ending = rehearsals, recordings, ending
        self._milestones = Milestones(job.layout.world_size)

    def fence(self) -> None:
        """Nobody is on the way anywhere."""
        self._milestones.clear()

    # --- the plan ----------------------------------------------------------------------------------------------------

    def carry_out(self, blueprint: Blueprint, now: float) -> None:
        job, resume = self._job, blueprint.resume
        job.blueprint = blueprint
        self._seat(blueprint)
        job.out.emit(
            "planned",
            step=resume.number if resume else 0,
            resume=str(resume) if resume else None,
            seats=list(job.seats),
            lost_steps=steps_lost(job.members.values(), resume),
        )
        job.commits.adopt(blueprint, job.members.values())
        if resume is None:
            self._recordings.void()
        self._send_parts(blueprint)
        job.enter(Phase.PREPARING, now, job.deadlines.prepare_s)

    def _seat(self, blueprint: Blueprint) -> None:
        job = self._job
        job.seats = blueprint.seats
        for member in job.members.values():
            member.position = None  # a node that leaves has given up its own
        for position, node in enumerate(job.seats):
            job.members[node].position, job.members[node].has_run = position, True
        self._departures.planned(job.seats, job.members)

    def _send_parts(self, blueprint: Blueprint) -> None:
        quorum, voters = self._job.quorum, self._job.voters
        assert quorum.has(voters), (self._job.seats, quorum.electorates)
        for node, part in blueprint.parts.items():
            if part.as_of is None:
                self._rehearsals.recording(node, [order.rank for order in part.orders])
            self._job.out.send(node, part)

    # --- what ranks and nodes say on the way -------------------------------------------------------------------------

    def plan_acked(self, member: Member, now: float) -> None:
        member.planned_in = self._job.generation
        self._maybe_go(now)

    def reach(self, milestone: str, rank: int, what: Any, now: float) -> None:
        if not self._milestones.reach(milestone, rank, what):
            return
        match milestone:
            case "prepared" if self._job.phase is Phase.PREPARING:
                self._connect(now)
            case "connected":
                self._maybe_go(now)
            case "finished":
                self._release()
            case "ended":
                self._all_ended()

    def lost_after_release(self, ranks: list[int], now: float) -> None:
        """They had nothing left to do: what they said of their end counts, if they said it."""
        for rank in ranks:
            self.reach("ended", rank, self._milestones.said("ended").get(rank, 1), now)

    def late_nodes(self, milestone: str) -> list[str]:
        job = self._job
        positions = {job.layout.position_of(rank) for rank in self._milestones.missing(milestone)}
        late = [job.seats[position] for position in sorted(positions)]
        return late or [node for node in job.seats if not self._knows_its_part(node)]

    def _knows_its_part(self, node: str) -> bool:
        return self._job.members[node].planned_in == self._job.generation

    # --- connect, go, the way out ------------------------------------------------------------------------------------

    def _connect(self, now: float) -> None:
        job = self._job
        assert job.blueprint is not None
        prepared: dict[int, Prepared] = self._milestones.said("prepared")
        agreed = len({each.agreement for each in prepared.values()}) == 1
        job.out.emit("prepared")
        if not agreed:
            job.out.emit("renegotiate")
        store = prepared[job.blueprint.store_rank].store
        job.tell_seats(Connect(generation=job.generation, store=store, agreed=agreed))
        if job.blueprint.resume is None:
            self._absences.may_run(job.seats)  # a script at its first line does not wait for Go
        job.enter(Phase.CONNECTING, now, job.deadlines.connect_s)

    def _maybe_go(self, now: float) -> None:
        """Rule 15, Go after every seat is ready: every seat connected, and every node has dropped what is newer than
        the resume version."""
        job = self._job
        if job.phase is not Phase.CONNECTING or not self._milestones.is_reached("connected"):
            return
        if all(map(self._knows_its_part, job.seats)):
            self._go(now)

    def _go(self, now: float) -> None:
        job = self._job
        self.run(now, from_go=True)
        for member in job.members.values():
            member.steps, member.paused = {}, {}
        job.quorum.pass_to(job.generation, job.voters)
        self._absences.end(job.seats)
        self._milestones.clear()
        job.out.emit("go")
        job.tell_seats(Go(generation=job.generation, cause=job.cause))
        self._rehearsals.assign(list(job.members.values()))
        self._spares.look(job.members.values())
        self._ending.end_if(job.commits.go())

    def run(self, now: float, *, from_go: bool) -> None:
        """Not `from_go`: it ran already, under the coordinator before this one."""
        self._job.stay_in(Phase.RUNNING)
        self._hangs.begin(now, from_go=from_go)

    def _release(self) -> None:
        self._job.released = True
        self._job.out.emit("finished")
        self._job.tell_seats(Release(generation=self._job.generation))

    def _all_ended(self) -> None:
        codes = {rank: code for rank, code in self._milestones.said("ended").items() if code}
        reason = f"ranks ended with codes {codes}" if codes else "all ranks ended"
        self._ending.end(reason, failed=bool(codes))
