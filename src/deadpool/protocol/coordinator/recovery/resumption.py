"""The way from a plan to the first step after it: prepare, connect, go. It has the end too, which all ranks reach
together as well: finished, ended."""

from __future__ import annotations

from collections.abc import Iterable

from deadpool.protocol.causes import EndCause
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.leaving.drain import Drains
from deadpool.protocol.coordinator.leaving.ending import Ending
from deadpool.protocol.coordinator.membership.hang import HangMonitor
from deadpool.protocol.coordinator.membership.members import Member, steps_lost
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.recovery.global_plan import GlobalPlan
from deadpool.protocol.coordinator.recovery.rehearsals import Rehearsals
from deadpool.protocol.identity import Address, Generation
from deadpool.protocol.messages import Connect, Ended, Finished, Go, NodeConnected, NodePrepared, Release


class Barrier:
    """Which ranks have arrived."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._arrived: set[int] = set()

    def arrive(self, ranks: Iterable[int]) -> bool:
        """Returns whether all ranks are there by now."""
        self._arrived.update(ranks)
        return len(self._arrived) == self._world_size

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(self._world_size) if rank not in self._arrived]


class RankBarriers:
    """How far the ranks have come in one generation."""

    def __init__(self, generation: Generation, world_size: int) -> None:
        self.generation, self._world_size = generation, world_size
        self.clear()

    def clear(self) -> None:
        self.prepared, self.connected = Barrier(self._world_size), Barrier(self._world_size)
        self.finished, self.ended = Barrier(self._world_size), Barrier(self._world_size)
        self.store: Address | None = None  # of the rank that the plan names
        self.agreements: set[str] = set()  # of all ranks that are prepared
        self.exit_codes: dict[int, int] = {}


class Resumption:
    def __init__(
        self,
        job: JobState,
        drains: Drains,
        rehearsals: Rehearsals,
        hang: HangMonitor,
        ending: Ending,
        fallback: Fallback,
    ) -> None:
        self._job, self._drains, self._rehearsals = job, drains, rehearsals
        self._hang, self._ending, self._fallback = hang, ending, fallback
        self._newest_barriers = RankBarriers(job.generation, job.layout.world_size)
        self.settles_at: float | None = None  # Go has left, and what follows from it was not looked at yet

    @property
    def _barriers(self) -> RankBarriers:
        """The barriers of this generation: what ranks reached in the one before counts no more."""
        if self._newest_barriers.generation != self._job.generation:
            self._newest_barriers = RankBarriers(self._job.generation, self._job.layout.world_size)
        return self._newest_barriers

    # --- the plan -----------------------------------------------------------------------------------------------------

    def carry_out(self, plan: GlobalPlan, now: float) -> None:
        job, resume = self._job, plan.resume
        before = job.plan.seating if job.plan is not None else None
        job.adopt(plan)
        self._drains.on_plan()
        job.out.emit(
            "planned",
            step=resume.number if resume else 0,
            resume=str(resume) if resume else None,
            seats=list(job.seats),
            lost_steps=steps_lost(job.members.values(), resume),
            checkpoint=plan.fallback or None,
        )
        job.vacancies.on_plan(plan, before, job.layout, job.out)
        job.commits.adopt(plan, job.members.values())
        if resume is None:
            self._rehearsals.discard_recordings()
        self._send_parts(plan)
        patience_s = job.deadlines.prepare_s + (self._fallback.read_s if plan.fallback else 0.0)
        job.enter(Phase.PREPARING, now, patience_s)

    def _send_parts(self, plan: GlobalPlan) -> None:
        quorum, voters = self._job.quorum, self._job.voters
        assert quorum.has(voters), (self._job.seats, quorum.electorates)
        for node, part in plan.parts.items():
            if self._job.members[node].has_missed_one_before(part):
                self._rehearsals.forget(node)
            if part.as_of is None:
                self._rehearsals.send_recordings(node, [order.rank for order in part.orders])
            self._job.out.send(node, part)

    # --- prepare, connect, go -----------------------------------------------------------------------------------------

    def on_prepared(self, member: Member, prepared: NodePrepared, now: float) -> None:
        barriers = self._barriers
        barriers.store = prepared.store or barriers.store
        barriers.agreements.update(prepared.agreements)
        if barriers.prepared.arrive(prepared.ranks) and self._job.phase is Phase.PREPARING:
            self._connect(now)

    def _connect(self, now: float) -> None:
        job = self._job
        store, agreed = self._barriers.store, len(self._barriers.agreements) == 1
        assert job.plan is not None and store is not None, f"no node named the store of {job.plan}"
        job.out.emit("prepared")
        if not agreed:
            job.out.emit("renegotiate")
        connect = Connect(generation=job.generation, store=store, agreed=agreed)
        job.send_seats(job.plan.seating.connect(connect, job.layout))
        if job.plan.resume is None:
            job.silent.seats_may_run(job.seats)  # a script at its first line does not wait for Go
        job.enter(Phase.CONNECTING, now, job.deadlines.connect_s)

    def on_connected(self, member: Member, connected: NodeConnected, now: float) -> None:
        """Rule 15, Go after every seat is ready. Ranks connect after all were prepared, and by then every node has
        dropped what is newer than the resume version."""
        if self._barriers.connected.arrive(connected.ranks) and self._job.phase is Phase.CONNECTING:
            self._go(now)

    def _go(self, now: float) -> None:
        job = self._job
        job.enter_without_deadline(Phase.RUNNING)
        self._hang.start(now, from_go=True)
        for member in job.members.values():
            member.steps, member.paused = {}, {}
        job.quorum.pass_to(job.generation, job.voters)
        job.silent.seats_run(job.seats)
        job.out.emit("go")
        job.send_seats(Go(generation=job.generation, cause=job.cause))
        self.settles_at = now

    def settle(self) -> None:
        """What follows from Go, before anything else: it looks at all copies and trainers of all nodes, which may be
        thousands, so Go itself leaves first."""
        self.settles_at = None
        self._barriers.clear()
        self._job.free_closed()
        self._rehearsals.assign_all()
        self._job.warn_if_no_spare()
        self._ending.end_if(self._job.commits.on_go())

    def continue_running(self, seats: tuple[str, ...], now: float) -> None:
        """Continues after a takeover in which no node has to stop. There was no Go from this coordinator."""
        job = self._job
        job.seats = seats
        job.silent.seats_run(seats)
        job.enter_without_deadline(Phase.RUNNING)
        self._hang.start(now, from_go=False)
        self._ending.end_if(job.commits.continue_running())
        self._rehearsals.take_over()

    # --- nodes that are late ------------------------------------------------------------------------------------------

    def late_to_prepare(self) -> dict[str, list[int]]:
        return self._late(self._barriers.prepared)

    def late_to_connect(self) -> dict[str, list[int]]:
        return self._late(self._barriers.connected)

    def _late(self, barrier: Barrier) -> dict[str, list[int]]:
        """Nodes, and which of their ranks are late."""
        late: dict[str, list[int]] = {}
        for rank in barrier.missing:
            late.setdefault(self._job.seats[self._job.layout.position_of(rank)], []).append(rank)
        return late

    # --- the end ------------------------------------------------------------------------------------------------------

    def on_finished(self, finished: Finished) -> None:
        if self._barriers.finished.arrive((finished.rank,)):
            self._job.release()
            self._job.out.emit("finished")
            self._job.send_seats(Release(generation=self._job.generation))

    def on_ended(self, ended: Ended) -> None:
        self._end_rank(ended.rank, ended.code)

    def on_lost_after_release(self, ranks: Iterable[int]) -> None:
        """Counts ranks that were lost after the release as ended. They had nothing left to do: the exit code that they
        reported counts, if they reported one.
        """
        for rank in ranks:
            self._end_rank(rank, self._barriers.exit_codes.get(rank, 1))

    def _end_rank(self, rank: int, code: int) -> None:
        barriers = self._barriers
        barriers.exit_codes[rank] = code
        if not barriers.ended.arrive((rank,)):
            return
        failed = {rank: code for rank, code in sorted(barriers.exit_codes.items()) if code}
        if not failed:
            self._ending.end_once_kept(EndCause.COMPLETED, "all ranks ended", failed=False)
            return
        is_over = self._job.released
        cause = EndCause.FAILED_AT_END if is_over else EndCause.RANK_FAILED
        self._ending.end_once_kept(cause, _told(failed, loop_is_over=is_over), failed=True)


def _told(failed: dict[int, int], *, loop_is_over: bool) -> str:
    """`failed` are exit codes by rank. A loop that is over tells the reader that no step has to be done again."""
    codes = ", ".join(f"rank {rank} ended with code {code}" for rank, code in failed.items())
    return f"{codes} after its loop was over (all steps are done)" if loop_is_over else codes
