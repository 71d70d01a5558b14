"""How many steps lie between two snapshots: as few as the overhead budget and the slots allow.

With T the step time, S the slots and B the budget, the interval k has to satisfy, for the worst rank:

    stall per capture      <= B * k * T           captures cost no more than the budget
    step's end to permit   <= (S - 1) * k * T     a slot is free again when it is needed

An interval that is too narrow is widened at once to what is needed. An interval that is wider than needed is halved,
but only when the half would still leave MARGIN to spare for every rank, and only after a number of commits in which
that was so. That number doubles each time a narrowing has to be taken back. The budget holds without all this: a
trainer waits for no copy longer than the budget allows, and gives the copy up. A wider interval only avoids copies
that would be begun in vain.

Stalls are what ranks estimate. What protection costs in all, with the memory and the processors that it takes from
the script, is measured by comparing steps with and without a copy (`agent/copies/capture_costs.py`), and bounds the
estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deadpool.protocol.causes import Miss
from deadpool.protocol.coordinator.commits.commits import Commits
from deadpool.protocol.coordinator.job import JobState
from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.identity import LEFT_OUT, Schedule
from deadpool.protocol.messages import CaptureCostReport, Missed, Overhead
from deadpool.protocol.permits import MAX_EVERY

MARGIN = 1.5
"""How much room the narrower interval has to leave before it is tried."""
ROOM_COMMITS = 4
"""The number of committed versions for which there has to be that margin; at most ROOM_COMMITS_MAX after failed
attempts.
"""
ROOM_COMMITS_MAX = 64
MISSES = 3
"""The number of versions missed in a row, for want of a slot or of time, that widens the interval. Where ranks miss
different versions nothing is committed, so no commit time is measured that could widen it."""
LEAD_STEPS = 3
"""Rule 4, every rank captures the same versions: a schedule begins more than two steps after the newest one that was
reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChange:
    every: int
    reason: str


class IntervalChooser:
    """Chooses the interval from what agents report. The present interval is kept by the commits."""

    def __init__(self, commits: Commits, *, budget: float, slots: int) -> None:
        self._commits, self._budget, self._slots = commits, budget, slots
        self.user_every = commits.timetable.newest.every
        self._least = self.user_every  # that is worth its cost while so few failures are to be expected
        self.costs: dict[int, CaptureCostReport] = {}
        self._missed: set[int] = set()
        self._count_at_miss = 0  # of commits, when a version was last missed
        self._room_since = 0  # the count of commits since which there was room
        self._room_commits = ROOM_COMMITS
        self._narrowed = False  # by the last change

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

    def on_missed(self, missed: Missed) -> None:
        if not self._commits.timetable.newest.captures(missed.number):
            return  # it belongs to the interval before
        if self._commits.count != self._count_at_miss:
            self._count_at_miss = self._commits.count
            self._missed.clear()
        if missed.stall_s is not None or missed.cause is Miss.NO_SLOT:
            self._missed.add(missed.number)

    def choose(self) -> IntervalChange | None:
        needed, reason = self._needed()
        if needed > self.every:
            return self._widen(needed, reason)
        if self._least > self.every:
            return self._widen(self._least, "so few failures are to be expected that this costs least")
        if len(self._missed) >= MISSES and self._commits.count == self._count_at_miss:
            return self._widen(2 * self.every, f"{len(self._missed)} versions in a row were missed")
        return self._narrow(needed)

    @property
    def overhead(self) -> Overhead | None:
        """Measured in the running job. Ranks step together, so one of them speaks for all: the median one."""
        known = sorted((c.overhead for c in self.costs.values() if c.overhead), key=lambda each: each.share)
        return known[len(known) // 2] if known else None

    def _needed(self) -> tuple[float, str]:
        """The least interval that would do, and why: the rank and the cost that ask for most."""
        slots = self._slots - 1
        stall, commit = 0.0, 0.0
        slowest, latest = None, None  # the ranks with the longest stalls and commits, in steps
        for costs in self.costs.values():  # of every rank in every round: so the text is made only at the end
            if costs.stall_s is not None and costs.stall_s >= stall * costs.step_s:
                stall, slowest = costs.stall_s / costs.step_s, costs
            if costs.commit_s is not None and costs.commit_s >= commit * slots * costs.step_s:
                commit, latest = costs.commit_s / (slots * costs.step_s), costs
        by_cost, why_cost = self._needed_by_cost(stall, slowest)
        if latest is None or by_cost > commit:
            return by_cost, why_cost
        return commit, self._commit_in_words(latest)

    def _needed_by_cost(self, stall: float, slowest: CaptureCostReport | None) -> tuple[float, str]:
        """What ranks estimate of their stalls counts as far as the measurement of the whole does not contradict it. At
        wide intervals it may: what a script does every 4 steps falls on the same side of each comparison there."""
        estimate, limit = stall / self.every, f"more than {_percent(self._budget)}"
        measured = self.overhead if self.every in LEFT_OUT else None
        if measured is not None and estimate < measured.at_least:
            share, told = measured.at_least, f"steps beside a copy take {_percent(measured.at_least)} longer at least"
        elif measured is not None and slowest is not None and estimate > measured.at_most:
            share, told = measured.at_most, f"steps beside a copy take {_percent(measured.at_most)} longer at most"
        elif slowest is not None:
            share, told = estimate, f"rank {slowest.rank}: captures cost {_percent(estimate)} of the step time"
        else:
            return 0.0, ""
        return share * self.every / self._budget, f"{told}, {limit}"

    def _commit_in_words(self, costs: CaptureCostReport) -> str:
        lasting = f"{self._slots - 1} slots last for {self.every * (self._slots - 1) * costs.step_s:.2f} s"
        return f"rank {costs.rank}: versions take {costs.commit_s:.2f} s to be committed, {lasting}"

    def _widen(self, needed: float, reason: str) -> IntervalChange | None:
        every = self.every
        while every < needed and 2 * every <= MAX_EVERY:
            every *= 2
        if every == self.every:
            return None  # it is as wide as it can be
        if self._narrowed:
            self._room_commits = min(max(ROOM_COMMITS, 2 * self._room_commits), ROOM_COMMITS_MAX)
        return self._change(every, reason)

    def _narrow(self, needed: float) -> IntervalChange | None:
        half = self.every // 2
        if half < self._least or not self._all_known() or MARGIN * needed > half:
            self._room_since = self._commits.count
            return None
        if self._commits.count < self._room_since + self._room_commits:
            return None
        room = f"for {self._room_commits} versions there was room: {needed:.2f} steps from one to the next would do"
        return self._change(half, room)

    def _all_known(self) -> bool:
        known = [c for c in self.costs.values() if c.stall_s is not None and c.commit_s is not None]
        return len(known) == self._commits.layout.world_size

    def _change(self, every: int, reason: str) -> IntervalChange:
        """What was measured belongs to the interval before."""
        self._narrowed = every < self.every
        self.forget()
        return IntervalChange(every=every, reason=reason)


class IntervalController:
    """Orders changes of the interval, one at a time, so that each can reach every trainer before it begins."""

    def __init__(self, job: JobState, chooser: IntervalChooser) -> None:
        self._job, self._commits, self._chooser = job, job.commits, chooser

    def adjust(self, now: float) -> None:
        """Called once per round of heartbeats."""
        if self._job.settings.overhead_budget <= 0:
            return
        seated = [member for member in self._job.members.values() if member.steps]
        if not self._all_passed_the_last_change(seated):
            return
        step_s = min((costs.step_s for costs in self._chooser.costs.values()), default=0.0)
        change = self._chooser.choose()
        if change is None:
            return
        start = max(self._first_beyond_reach(seated, step_s, now), self._commits.permit.keep_from)
        detail: dict[str, Any] = {"every": change.every, "from": start, "reason": change.reason}
        self._job.out.emit("capture_interval", **detail)
        left_out_of = self._commits.timetable.newest.left_out_of
        self._commits.reschedule(Schedule(every=change.every, start=start, left_out_of=left_out_of))

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


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _steps(seconds: float, step_s: float) -> int:
    return math.ceil(seconds / step_s) if step_s > 0 else 0
