"""What heartbeats tell while the job runs: progress, what captures cost, and how long each rank works at a step.

Each of the three is judged elsewhere: `hang.py`, `interval.py`, `stragglers.py`. Intervals and stragglers concern
all ranks, so they are looked at once per round, that is once every node has had time to send one heartbeat.
"""

from __future__ import annotations

from deadpool.protocol.coordinator.commits.interval import IntervalChooser, IntervalController
from deadpool.protocol.coordinator.job import JobState, Phase
from deadpool.protocol.coordinator.membership.hang import HangMonitor
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.membership.stragglers import Straggler, StragglerWatch
from deadpool.protocol.messages import Heartbeat


class RunMonitor:
    def __init__(self, job: JobState) -> None:
        self._job = job
        self.hang = HangMonitor(job)
        settings = job.settings
        self.interval_chooser = IntervalChooser(job.commits, budget=settings.overhead_budget, slots=settings.slots)
        self.stragglers = StragglerWatch(job.layout, job.out)
        self._interval_controller = IntervalController(job, self.interval_chooser)
        self._heartbeats = 0  # in this round

    def on_heartbeat(self, member: Member, beat: Heartbeat, now: float) -> Straggler | None:
        """Returns the slowest straggler at the end of a round, if there is one."""
        member.steps.update(beat.steps)
        member.steps_reported_at = now
        self.hang.on_heartbeat(member, beat, now)
        if beat.costs:
            self.interval_chooser.on_costs(beat.costs)
        if beat.slots is not None:
            self.interval_chooser.on_slots(member.node, beat.slots)
        if self._job.phase is not Phase.RUNNING:
            return None
        round_is_over = self._count_heartbeat()
        if round_is_over:
            self._interval_controller.adjust(now)
        if beat.work_times:
            self.stragglers.on_work_times(beat.work_times)
        if not round_is_over or not self._job.is_full:
            return None  # a process that does the work of several ranks is slower, and no straggler
        return self.stragglers.compare(self._job.seats)

    def _count_heartbeat(self) -> bool:
        """Whether it ends a round."""
        self._heartbeats += 1
        if self._heartbeats < self._job.seated_nodes:
            return False
        self._heartbeats = 0
        return True

    def end_generation(self) -> None:
        """Ranks may move, and a recovery is no time to measure in."""
        self.interval_chooser.forget()
        self.interval_chooser.slots.clear()
        self.stragglers.forget()
