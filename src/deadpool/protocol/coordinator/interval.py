"""How many steps lie between two snapshots: as few as the overhead budget and the slots allow.

With T the step time, S the slots and B the budget, the interval k has to satisfy, for the worst rank:

    stall per capture      <= B * k * T           captures cost no more than the budget
    step's end to permit   <= (S - 1) * k * T     a slot is free again when it is needed

The second is a part of rule 4 (every rank captures the same versions).

Too narrow: widened at once, to what is needed. Wider than needed: halved, but only when the half would still have
MARGIN to spare, for every rank, and after a stretch of commits in which that was so; the stretch doubles each time that
a narrowing has to be taken back. The budget itself does not depend on any of this: a trainer waits for no copy longer
than it has saved up, and gives the copy up. What the interval does is that copies are not begun in vain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deadpool.protocol.capture_schedule import MAX_EVERY
from deadpool.protocol.coordinator.commits import Commits
from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.outbox import Outbox
from deadpool.protocol.messages import Costs, Missed, Settings
from deadpool.protocol.topology import Schedule
from deadpool.protocol.trainer_core import NO_SLOT

MARGIN = 1.5
"""To be spared at the narrower interval before it is tried."""
ROOM_COMMITS = 4
"""Committed versions for which there has to be that margin; at most ROOM_COMMITS_MAX after failed attempts."""
ROOM_COMMITS_MAX = 64
MISSES = 3
"""Versions missed in a row, for want of a slot or of time, that are reason enough: where ranks miss different ones,
nothing is committed and so nothing is measured either."""
LEAD_STEPS = 3
"""Rule 4, every rank captures the same versions: a schedule begins later than the newest step reported, by more than
two steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    every: int
    reason: str


class Interval:
    """The choice, from what agents told. The interval itself is kept by the commits."""

    def __init__(self, commits: Commits, *, budget: float, slots: int) -> None:
        self._commits, self._budget, self._slots = commits, budget, slots
        self._narrowest = commits.timetable.newest.every
        self.costs: dict[int, Costs] = {}
        self._missed: set[int] = set()
        self._commits_then = 0  # when a version was last missed
        self._room_since = 0  # commits
        self._room_commits = ROOM_COMMITS
        self._narrowed = False  # by the last change

    @property
    def every(self) -> int:
        return self._commits.timetable.newest.every

    def forget(self) -> None:
        """A generation is over. The interval stays."""
        self.costs.clear()
        self._missed.clear()
        self._room_since = self._commits.count

    def hear(self, costs: Iterable[Costs]) -> None:
        self.costs.update({each.rank: each for each in costs if each.every == self.every})

    def missed(self, news: Missed) -> None:
        if not self._commits.timetable.newest.captures(news.number):
            return  # of the interval before
        if self._commits.count != self._commits_then:
            self._commits_then = self._commits.count
            self._missed.clear()
        if news.stall_s is not None or news.reason == NO_SLOT:
            self._missed.add(news.number)

    def choose(self) -> Change | None:
        needed, reason = self._needed()
        if needed > self.every:
            return self._widen(needed, reason)
        if len(self._missed) >= MISSES and self._commits.count == self._commits_then:
            return self._widen(2 * self.every, f"{len(self._missed)} versions in a row were missed")
        return self._narrow(needed)

    def _needed(self) -> tuple[float, str]:
        """The least interval that would do, and for what: the rank and the need that ask for most."""
        budget, slots = self._budget, self._slots - 1
        most, reason, worst = 0.0, "", None
        for costs in self.costs.values():  # of every rank, in every round: nothing is put into words before it counts
            if costs.stall_s is not None and costs.stall_s >= most * budget * costs.step_s:
                most, reason, worst = costs.stall_s / (budget * costs.step_s), "stall", costs
            if costs.commit_s is not None and costs.commit_s >= most * slots * costs.step_s:
                most, reason, worst = costs.commit_s / (slots * costs.step_s), "commit", costs
        if worst is None:
            return 0.0, ""
        return most, self._stall_in_words(worst) if reason == "stall" else self._commit_in_words(worst)

    def _stall_in_words(self, costs: Costs) -> str:
        share = (costs.stall_s or 0.0) / (self.every * costs.step_s)
        return (
            f"rank {costs.rank}: captures cost {_percent(share)} of the step time, more than {_percent(self._budget)}"
        )

    def _commit_in_words(self, costs: Costs) -> str:
        lasting = f"{self._slots - 1} slots last for {self.every * (self._slots - 1) * costs.step_s:.2f} s"
        return f"rank {costs.rank}: versions take {costs.commit_s:.2f} s to be committed, {lasting}"

    def _widen(self, needed: float, reason: str) -> Change | None:
        every = self.every
        while every < needed and 2 * every <= MAX_EVERY:
            every *= 2
        if every == self.every:
            return None  # as wide as can be
        if self._narrowed:
            self._room_commits = min(2 * self._room_commits, ROOM_COMMITS_MAX)
        return self._change(every, reason)

    def _narrow(self, needed: float) -> Change | None:
        half = self.every // 2
        if half < self._narrowest or not self._all_known() or MARGIN * needed > half:
            self._room_since = self._commits.count
            return None
        if self._commits.count < self._room_since + self._room_commits:
            return None
        room = f"for {self._room_commits} versions there was room: {needed:.2f} steps from one to the next would do"
        return self._change(half, room)

    def _all_known(self) -> bool:
        known = [c for c in self.costs.values() if c.stall_s is not None and c.commit_s is not None]
        return len(known) == self._commits.layout.world_size

    def _change(self, every: int, reason: str) -> Change:
        """What was measured belongs to the interval before."""
        self._narrowed = every < self.every
        self.forget()
        return Change(every=every, reason=reason)


class Pace:
    """Orders changes of the interval, one at a time, so that news of one can reach every trainer before it begins."""

    def __init__(self, commits: Commits, settings: Settings, out: Outbox) -> None:
        self._commits, self._out = commits, out
        self._on = settings.overhead_budget > 0
        self._news_s = settings.heartbeat_s
        self._heartbeats = 0  # since it was last looked
        self.interval = Interval(commits, budget=settings.overhead_budget, slots=settings.slots)

    def fence(self) -> None:
        self.interval.forget()

    def look(self, members: Iterable[Member], now: float) -> None:
        """Called at every heartbeat while the job runs, and looks once per round of them: there may be many nodes."""
        self._heartbeats += 1
        if not self._on or self._heartbeats < self._commits.layout.positions:
            return
        self._heartbeats = 0
        seated = [member for member in members if member.steps]
        if not self._everybody_passed_the_last(seated):
            return
        step_s = min((costs.step_s for costs in self.interval.costs.values()), default=0.0)
        change = self.interval.choose()
        if change is None:
            return
        start = max(self._first_beyond_reach(seated, step_s, now), self._commits.permit.keep_from)
        detail: dict[str, Any] = {"every": change.every, "from": start, "reason": change.reason}
        self._out.emit("interval", **detail)
        self._commits.reschedule(Schedule(every=change.every, start=start))

    def _everybody_passed_the_last(self, seated: list[Member]) -> bool:
        steps = [step for member in seated for step in member.steps.values()]
        everybody = len(steps) == self._commits.layout.world_size
        return everybody and min(steps) >= self._commits.timetable.newest.start

    def _first_beyond_reach(self, seated: list[Member], step_s: float, now: float) -> int:
        """No rank should get there before the news does. Reports age, and news takes time: a heartbeat's, by guess.

        It is a guess, and may be: nobody waits for a schedule, so nothing can hold a rank back. Who hears too late says
        which versions it missed by that (TrainerCore.reschedule), and no harm is done.
        """
        reports = [(max(member.steps.values()), member.steps_told) for member in seated]
        reports.append((self._commits.ledger.newest, now))
        reached = max(number + _steps(now - told, step_s) for number, told in reports)
        return reached + _steps(self._news_s, step_s) + LEAD_STEPS


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _steps(seconds: float, step_s: float) -> int:
    return math.ceil(seconds / step_s) if step_s > 0 else 0
