"""From a plan to the first step after it: prepare, connect, go. And the end, which all ranks reach together as well:
finished, ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deadpool.protocol.coordinator.drain import Drains
from deadpool.protocol.coordinator.ending import Ending
from deadpool.protocol.coordinator.hang import HangMonitor
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.members import Member, steps_lost
from deadpool.protocol.coordinator.planner import GlobalPlan
from deadpool.protocol.coordinator.rehearsals import Rehearsals
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Connect, Connected, Ended, Finished, Go, Prepared, Release

CHECKPOINT_READ_S = 1800.0
"""How much longer nodes may take to prepare where the state of all ranks is read from a durable checkpoint."""


class Barrier:
    """What each rank reported when it arrived."""

    def __init__(self, world_size: int) -> None:
        self._ranks = range(world_size)
        self.reports: dict[int, Any] = {}

    def arrive(self, rank: int, report: Any = True) -> bool:
        """Returns whether all ranks are there by now."""
        self.reports[rank] = report
        return self.is_complete

    @property
    def is_complete(self) -> bool:
        return len(self.reports) == len(self._ranks)

    @property
    def missing(self) -> list[int]:
        return [rank for rank in self._ranks if rank not in self.reports]


class RankBarriers:
    """How far the ranks have come in one generation."""

    def __init__(self, generation: Generation, world_size: int) -> None:
        self.generation, self._world_size = generation, world_size
        self.clear()

    def clear(self) -> None:
        self.prepared, self.connected = Barrier(self._world_size), Barrier(self._world_size)
        self.finished, self.ended = Barrier(self._world_size), Barrier(self._world_size)


class Resumption:
    def __init__(
        self, job: JobState, drains: Drains, rehearsals: Rehearsals, hang: HangMonitor, ending: Ending
    ) -> None:
        self._job, self._drains, self._rehearsals = job, drains, rehearsals
        self._hang, self._ending = hang, ending
        self._newest_barriers = RankBarriers(job.generation, job.layout.world_size)

    @property
    def _barriers(self) -> RankBarriers:
        """Of this generation: what ranks reached in the one before counts no more."""
        if self._newest_barriers.generation != self._job.generation:
            self._newest_barriers = RankBarriers(self._job.generation, self._job.layout.world_size)
        return self._newest_barriers

    # --- the plan -----------------------------------------------------------------------------------------------------

    def carry_out(self, plan: GlobalPlan, now: float) -> None:
        job, resume, carried_before = self._job, plan.resume, self._job.carried
        self._forget_readers_without_seats(plan)
        job.adopt(plan)
        self._drains.on_plan()
        job.out.emit(
            "planned",
            step=resume.number if resume else 0,
            resume=str(resume) if resume else None,
            seats=list(job.seats),
            lost_steps=steps_lost(job.members.values(), resume),
            checkpoint=plan.checkpoint or None,
        )
        if plan.carried or carried_before:
            self._report_size(plan, carried_before)
        job.commits.adopt(plan, job.members.values())
        if resume is None:
            self._rehearsals.discard_recordings()
        self._send_parts(plan)
        patience_s = job.deadlines.prepare_s + (CHECKPOINT_READ_S if plan.checkpoint else 0.0)
        job.enter(Phase.PREPARING, now, patience_s)

    def _forget_readers_without_seats(self, plan: GlobalPlan) -> None:
        """A node whose ranks move to other nodes clears its recordings. If it gets a seat again, it needs them."""
        seats = set(plan.seats)
        for member in self._job.members.values():
            if member.position is not None and member.node not in seats:
                self._rehearsals.forget(member.node)

    def _report_size(self, plan: GlobalPlan, before: dict[int, int]) -> None:
        """Rule 30, carried ranks: from the first such plan on the job is not bit-identical to an undisturbed one."""
        job, step = self._job, plan.resume.number if plan.resume else 0
        if plan.carried and job.inexact_from is None:
            job.inexact_from = step
        if plan.carried == before:
            return
        job.out.emit(
            "shrunk" if set(plan.carried) - set(before) else "grown",
            step=step,
            nodes=len(set(plan.seats)),
            of=job.layout.positions,
            carried={str(rank): carrier for rank, carrier in _carried_ranks(job)},
            inexact_from=job.inexact_from,
        )

    def _send_parts(self, plan: GlobalPlan) -> None:
        quorum, voters = self._job.quorum, self._job.voters
        assert quorum.has(voters), (self._job.seats, quorum.electorates)
        for node, part in plan.parts.items():
            if part.as_of is None:
                self._rehearsals.send_recordings(node, [order.rank for order in part.orders])
            self._job.out.send(node, part)

    # --- prepare, connect, go -----------------------------------------------------------------------------------------

    def on_plan_ack(self, member: Member, now: float) -> None:
        member.planned_in = self._job.generation
        self._go_if_ready(now)

    def on_prepared(self, prepared: Prepared, now: float) -> None:
        if self._barriers.prepared.arrive(prepared.rank, prepared) and self._job.phase is Phase.PREPARING:
            self._connect(now)

    def _connect(self, now: float) -> None:
        job = self._job
        assert job.plan is not None
        prepared: dict[int, Prepared] = self._barriers.prepared.reports
        agreed = len({each.agreement for each in prepared.values()}) == 1
        job.out.emit("prepared")
        if not agreed:
            job.out.emit("renegotiate")
        store = prepared[job.plan.store_rank].store
        job.send_seats(Connect(generation=job.generation, store=store, agreed=agreed, carried=_carried_ranks(job)))
        if job.plan.resume is None:
            job.silent.seats_may_run(job.seats)  # a script at its first line does not wait for Go
        job.enter(Phase.CONNECTING, now, job.deadlines.connect_s)

    def on_connected(self, connected: Connected, now: float) -> None:
        self._barriers.connected.arrive(connected.rank)
        self._go_if_ready(now)

    def _go_if_ready(self, now: float) -> None:
        """Rule 15, Go after every seat is ready: every rank has connected, and every node has dropped what is newer
        than the resume version."""
        job = self._job
        if job.phase is not Phase.CONNECTING or not self._barriers.connected.is_complete:
            return
        if all(map(self._knows_its_part, job.seats)):
            self._go(now)

    def _go(self, now: float) -> None:
        job = self._job
        job.enter_without_deadline(Phase.RUNNING)
        self._hang.start(now, from_go=True)
        for member in job.members.values():
            member.steps, member.paused = {}, {}
        job.quorum.pass_to(job.generation, job.voters)
        job.silent.seats_run(job.seats)
        self._barriers.clear()
        job.out.emit("go")
        job.send_seats(Go(generation=job.generation, cause=job.cause))
        self._rehearsals.assign_all()
        job.warn_if_no_spare()
        self._ending.end_if(job.commits.on_go())

    def continue_running(self, seats: tuple[str, ...], now: float) -> None:
        """After a takeover in which no node has to stop. There was no Go from this coordinator."""
        job = self._job
        job.seats = seats
        job.silent.seats_run(seats)
        job.enter_without_deadline(Phase.RUNNING)
        self._hang.start(now, from_go=False)
        self._ending.end_if(job.commits.continue_running())
        self._rehearsals.take_over()

    # --- nodes that are late ------------------------------------------------------------------------------------------

    def late_to_prepare(self) -> list[str]:
        return self._late_nodes(self._barriers.prepared)

    def late_to_connect(self) -> list[str]:
        return self._late_nodes(self._barriers.connected)

    def _late_nodes(self, barrier: Barrier) -> list[str]:
        job = self._job
        positions = {job.layout.position_of(rank) for rank in barrier.missing}
        late = [job.seats[position] for position in sorted(positions)]
        return late or [node for node in job.seats if not self._knows_its_part(node)]

    def _knows_its_part(self, node: str) -> bool:
        return self._job.members[node].planned_in == self._job.generation

    # --- the end ------------------------------------------------------------------------------------------------------

    def on_finished(self, finished: Finished) -> None:
        if self._barriers.finished.arrive(finished.rank):
            self._job.release()
            self._job.out.emit("finished")
            self._job.send_seats(Release(generation=self._job.generation))

    def on_ended(self, ended: Ended) -> None:
        self._end_rank(ended.rank, ended.code)

    def on_lost_after_release(self, ranks: Iterable[int]) -> None:
        """They had nothing left to do: the exit code that they reported counts, if they reported one."""
        for rank in ranks:
            self._end_rank(rank, self._barriers.ended.reports.get(rank, 1))

    def _end_rank(self, rank: int, code: int) -> None:
        if not self._barriers.ended.arrive(rank, code):
            return
        codes = {rank: code for rank, code in self._barriers.ended.reports.items() if code}
        reason = f"ranks ended with codes {codes}" if codes else "all ranks ended"
        self._ending.end_after_writing(reason, failed=bool(codes))


def _carried_ranks(job: JobState) -> tuple[tuple[int, int], ...]:
    """Rule 30, carried ranks: each rank without a process, and the rank that carries it."""
    pairs = ((job.layout.ranks_at(p), job.layout.ranks_at(carrier)) for p, carrier in sorted(job.carried.items()))
    return tuple(pair for ranks, carriers in pairs for pair in zip(ranks, carriers, strict=True))
