"""How many steps lie between two snapshots: as few as the overhead budget and the slots allow (`interval_needs.py`).

An interval that is too narrow is widened at once to what is needed, and a change says its cause and, where a user may
do something about it, once per cause what that is. An interval that is wider than needed is halved, but only when the
half would still leave MARGIN to spare for every rank, and only after a number of commits in which that was so. That
number doubles each time a narrowing has to be taken back. It is large where steps had to be compared to find that
captures cost too much: it takes as long again to find out once more.

The budget holds without all this as far as the optimizer waits: a trainer waits for no copy longer than the budget
allows, and gives the copy up. A wider interval only avoids copies that would be begun in vain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deadpool.protocol.causes import Miss, Widening
from deadpool.protocol.coordinator.commits import interval_needs
from deadpool.protocol.coordinator.commits.commits import Commits
from deadpool.protocol.coordinator.commits.interval_needs import REMEDIES, Need, SlotRoom
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.identity import LEFT_OUT, LEFT_OUT_OF, LEFT_OUT_RARELY, Schedule
from deadpool.protocol.messages import CaptureCostReport, Missed, Overhead, SlotReport
from deadpool.protocol.permits import MAX_EVERY

MARGIN = 1.5
"""How much room the narrower interval has to leave before it is tried."""
ROOM_COMMITS = 4
"""The number of committed versions for which there has to be that margin; at most ROOM_COMMITS_MAX after failed
attempts.
"""
ROOM_COMMITS_MAX = 64
ROOM_COMMITS_MEASURED = 512
"""The same where a comparison of steps has shown that captures cost too much; it is at most 8192 after failed
attempts."""
ROOM_COMMITS_MEASURED_MAX = 8192
MISSES = 3
"""The number of versions missed in a row, for want of a slot or of time, that widens the interval. Where ranks miss
different versions nothing is committed, so no commit time is measured that could widen it."""
KNOWN = 32
"""The number of comparisons of steps after which captures are left out rarely, where they cost what they may."""
UNKNOWN_SLOTS = 3
"""The number of slots before nodes have told how many they have."""
LEAD_STEPS = 3
"""Rule 4, every rank captures the same versions: a schedule begins more than two steps after the newest one that was
reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChange:
    every: int
    reason: str
    cause: Widening | None = None  # None: it is narrower than before


class IntervalChooser:
    """Chooses the interval from what agents report. The present interval is kept by the commits."""

    def __init__(self, commits: Commits, *, budget: float, slots: int) -> None:
        self._commits, self._budget, self._slots = commits, budget, slots
        self.user_every = commits.timetable.newest.every
        self._least = self.user_every  # that is worth its cost while so few failures are to be expected
        self.costs: dict[int, CaptureCostReport] = {}
        self.slots: dict[str, SlotReport] = {}  # by node
        self._missed: set[int] = set()
        self._count_at_miss = 0  # of commits, when a version was last missed
        self._room_since = 0  # the count of commits since which there was room
        self._room_commits = ROOM_COMMITS
        self._narrowed = False  # by the last change
        self.widened: Need | None = None  # why the interval is wider than was asked for, as far as this process knows

    @property
    def every(self) -> int:
        return self._commits.timetable.newest.every

    def set_least(self, every: int) -> None:
        """Decided by `adaptation.py`. A narrower interval is taken at once, as far as costs allow it."""
        if every < self._least:
            self._room_commits, self._room_since = 0, 0
        self._least = max(every, self.user_every)

    def forget(self) -> None:
        """A generation is over. The interval stays as it is."""
        self.costs.clear()
        self._missed.clear()
        self._room_since = self._commits.count

    def on_costs(self, costs: Iterable[CaptureCostReport]) -> None:
        self.costs.update({each.rank: each for each in costs if each.every == self.every})

    def on_slots(self, node: str, report: SlotReport) -> None:
        self.slots[node] = report

    @property
    def slot_room(self) -> SlotRoom:
        return interval_needs.slot_room(self.slots, self._slots or UNKNOWN_SLOTS)

    def _may_grow(self, rank: int) -> bool:
        """Whether the node of this rank gets further slots for it: it has missed a version for want of one. A node that
        has not told yet how many there can be, as after each recovery, may."""
        nodes, layout = self._commits.ledger.nodes, self._commits.layout
        report = self.slots.get(nodes[layout.position_of(rank)]) if nodes else None
        return not self._slots if report is None else report.least < report.at_most

    def on_missed(self, missed: Missed) -> None:
        if not self._commits.timetable.newest.captures(missed.number):
            return  # it belongs to the interval before
        if self._commits.count != self._count_at_miss:
            self._count_at_miss = self._commits.count
            self._missed.clear()
        if missed.stall_s is not None or (missed.cause is Miss.NO_SLOT and not self._may_grow(missed.rank)):
            self._missed.add(missed.number)

    def choose(self) -> IntervalChange | None:
        need = self._needed()
        if need.steps > self.every:
            return self._widen(need)
        if self._least > self.every:
            told = "so few failures are to be expected that this costs least"
            return self._widen(Need(steps=self._least, cause=Widening.FEW_FAILURES, reason=told))
        if len(self._missed) >= MISSES and self._commits.count == self._count_at_miss:
            told = f"{len(self._missed)} versions in a row were missed"
            return self._widen(Need(steps=2 * self.every, cause=Widening.MISSED, reason=told))
        return self._narrow()

    def choose_left_out(self) -> int | None:
        """Says of how many captures some are left out to compare steps: rarely, once it is certain that captures cost
        no more than they may, since a loss beside one that is left out repeats more steps. None: as now."""
        now, known = self._commits.timetable.newest.left_out_of, self.overhead
        if known is None or self.every not in LEFT_OUT:
            return None
        if now == LEFT_OUT_OF and known.count >= KNOWN and known.at_most <= self._budget:
            return LEFT_OUT_RARELY
        return LEFT_OUT_OF if now == LEFT_OUT_RARELY and known.share > self._budget else None

    @property
    def overhead(self) -> Overhead | None:
        """Measured in the running job."""
        return interval_needs.measured(self.costs.values())

    def _needed(self) -> Need:
        """What is certain to be needed: by the budget, or by the slots."""
        costs = tuple(self.costs.values())
        by_cost = interval_needs.by_cost(costs, every=self.every, budget=self._budget)
        surely = tuple(each.surely for each in costs)
        by_slots = interval_needs.by_slots(surely, every=self.every, room=self.slot_room)
        return by_cost if by_cost.steps > by_slots.steps else by_slots

    def _widen(self, need: Need) -> IntervalChange | None:
        every = self.every
        while every < need.steps and 2 * every <= MAX_EVERY:
            every *= 2
        if every == self.every:
            return None  # it is as wide as it can be
        is_measured, room = need.cause is Widening.COST, self._room_commits
        least = ROOM_COMMITS_MEASURED if is_measured else ROOM_COMMITS
        most = ROOM_COMMITS_MEASURED_MAX if is_measured else ROOM_COMMITS_MAX
        self._room_commits = max(room, least, min(2 * room, most) if self._narrowed else 0)
        self.widened = need
        return self._change(every, need.reason, need.cause)

    def _narrow(self) -> IntervalChange | None:
        half = self.every // 2
        needed = self._comfortable() if half >= self._least and self._all_known() else math.inf
        if MARGIN * needed > half:
            self._room_since = self._commits.count
            return None
        if self._commits.count < self._room_since + self._room_commits:
            return None
        room = f"for {self._room_commits} versions there was room: {needed:.2f} steps from one to the next would do"
        if half == self.user_every:
            self.widened = None
        return self._change(half, room, None)

    def _comfortable(self) -> float:
        """The interval that the means ask for."""
        costs = tuple(self.costs.values())
        by_cost = interval_needs.by_mean_cost(costs, every=self.every, budget=self._budget)
        return max(by_cost, interval_needs.by_slots(costs, every=self.every, room=self.slot_room).steps)

    def _all_known(self) -> bool:
        known = [c for c in self.costs.values() if c.stall_s is not None and c.commit_s is not None]
        return len(known) == self._commits.layout.world_size

    def _change(self, every: int, reason: str, cause: Widening | None) -> IntervalChange:
        """What was measured belongs to the interval before."""
        self._narrowed = every < self.every
        self.forget()
        return IntervalChange(every=every, reason=reason, cause=cause)


class IntervalController:
    """Orders changes of the interval, one at a time, so that each can reach every trainer before it begins."""

    def __init__(self, job: JobState, chooser: IntervalChooser) -> None:
        self._job, self._commits, self._chooser = job, job.commits, chooser
        self._said: set[Widening] = set()

    def adjust(self, now: float) -> None:
        """Called once per round of heartbeats."""
        if self._job.settings.overhead_budget <= 0:
            return
        seated = [member for member in self._job.members.values() if member.steps]
        if not self._all_passed_the_last_change(seated):
            return
        step_s = min((costs.step_s for costs in self._chooser.costs.values()), default=0.0)
        change = self._chooser.choose()
        left_out_of = self._chooser.choose_left_out() if change is None else None
        if change is None and left_out_of is None:
            return
        start = max(self._first_beyond_reach(seated, step_s, now), self._commits.permit.keep_from)
        if change is None:
            assert left_out_of is not None
            self._commits.reschedule(Schedule(every=self._chooser.every, start=start, left_out_of=left_out_of))
            return
        cause = change.cause.value if change.cause is not None else None
        detail: dict[str, Any] = {"every": change.every, "from": start, "reason": change.reason, "widened_by": cause}
        self._job.out.emit("capture_interval", **detail)
        self._say_once(change)
        before = self._commits.timetable.newest.left_out_of
        left_out_of = LEFT_OUT_OF if before == LEFT_OUT_RARELY else before  # what another interval costs is not known
        self._commits.reschedule(Schedule(every=change.every, start=start, left_out_of=left_out_of))

    def _say_once(self, change: IntervalChange) -> None:
        """What a user may do about a wide interval is said when a cause first shows, and not at each change."""
        if change.cause in (None, Widening.FEW_FAILURES, *self._said):
            return
        assert change.cause is not None
        self._said.add(change.cause)
        asked, remedy = self._chooser.user_every, REMEDIES[change.cause]
        self._job.out.emit(
            "interval_not_kept", every=change.every, asked=asked, reason=change.reason, remedy=remedy,
            widened_by=change.cause.value,
        )  # fmt: skip

    def _all_passed_the_last_change(self, seated: list[Member]) -> bool:
        steps = [step for member in seated for step in member.steps.values()]
        all_report = len(steps) == self._commits.layout.world_size
        return all_report and min(steps) >= self._commits.timetable.newest.start

    def _first_beyond_reach(self, seated: list[Member], step_s: float, now: float) -> int:
        """A version that no rank should reach before it hears of the change. Reports are old when they arrive, and the
        news is assumed to take one heartbeat.

        An estimate is enough. A rank never waits for a schedule, so it cannot be held back: a rank that hears too late
        reports the versions that it missed by that (`TrainerCore.reschedule`), and no copy is lost.
        """
        reports = [(max(member.steps.values()), member.steps_reported_at) for member in seated]
        reports.append((self._commits.ledger.newest, now))
        reached = max(number + _steps(now - told, step_s) for number, told in reports)
        return reached + _steps(self._job.settings.heartbeat_s, step_s) + LEAD_STEPS


def _steps(seconds: float, step_s: float) -> int:
    return math.ceil(seconds / step_s) if step_s > 0 else 0
