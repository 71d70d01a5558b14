"""What captures and protection cost a node's ranks.

`OverheadMeter`: what protection costs a rank, measured while it trains: steps beside a copy are compared with steps
beside none.

A snapshot is copied while the next step runs, and sent to its holders in that step or the one after it. Steps that
are further from the last snapshot are bare. With snapshots in every step, or every second one, no step would be:
there some snapshots are left out now and then (`Schedule.left_out_of`). Steps for which the script has switched it
off are bare too. A run of bare steps is compared with the two usual steps before it and the two after it, so that a
drift of the step time cancels out.

Differences are small and noisy. Reported is their mean, in which the few largest and smallest count as less, with
its 95 % confidence interval.

`RankCosts` and `CaptureCosts`: what captures have cost a node's ranks lately, as its agent measures it.

Only measurements under the present schedule count: another interval says little about this one. The time from the
end of a version's step to the permit that commits it is measured here and nowhere else. The agent sees both ends by
one clock, so this time includes the copy, the checksum, the slowest holder, the permit's way back and the lag of
other ranks (L1 + L2 + skew in the protocol's condition on the interval).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import Schedule
from deadpool.protocol.messages import CaptureCostReport, Missed, Overhead, Stepped

BESIDE = 2
"""Steps from a snapshot on that run beside its copy, or beside what is still sent of it."""
NEIGHBOURS = 2
ENOUGH_STEPS = 16
"""Fewer comparisons than this are not reported."""
_KEPT = 512
_TAIL = 0.05
"""The share at either end that counts as the value next to it: a step with an evaluation is no cost of ours."""
_ERRORS = 2.0
"""Standard errors to either side of the mean."""


class OverheadMeter:
    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._differences: deque[float] = deque(maxlen=_KEPT)
        self._off: set[int] = set()
        self.interrupt()

    def interrupt(self) -> None:
        """The next step is no neighbour of the last one."""
        self._last: int | None = None
        self._before: list[float] = []
        self._bare: list[float] = []
        self._after: list[float] = []

    def reschedule(self, schedule: Schedule) -> None:
        if schedule.every != self._schedule.every:
            self._differences.clear()
        self._schedule = schedule
        self.interrupt()

    def switched_off(self, version: int) -> None:
        """The script wants no snapshot of this version."""
        self._off = {number for number in self._off if number > version - BESIDE} | {version}

    def on_step(self, version: int, step_s: float) -> None:
        """A step that began at this version."""
        if self._last is not None and version != self._last + 1:
            self.interrupt()
            self._off = {number for number in self._off if number <= version}  # a later one may be captured now
        self._last = version
        copies = sum(self._captures(version - age) for age in range(BESIDE))
        if copies == 0:
            self._on_bare(step_s)
        elif copies == max(1, BESIDE // self._schedule.every):  # else it is next to one that was left out
            self._on_beside(step_s)

    def _captures(self, version: int) -> bool:
        return self._schedule.captures(version) and version not in self._off

    def _on_bare(self, step_s: float) -> None:
        if len(self._before) == NEIGHBOURS:
            self._bare.append(step_s)

    def _on_beside(self, step_s: float) -> None:
        if not self._bare:
            self._before = [*self._before, step_s][-NEIGHBOURS:]
            return
        self._after.append(step_s)
        if len(self._after) == NEIGHBOURS:
            beside_s = statistics.fmean([*self._before, *self._after])
            self._differences.append(beside_s / statistics.fmean(self._bare) - 1.0)
            self._before, self._bare, self._after = self._after, [], []

    def overhead(self) -> Overhead | None:
        """Returns the overhead as a share of the step time; None while it is not known yet."""
        count = len(self._differences)
        if count < ENOUGH_STEPS:
            return None
        tail = int(_TAIL * count)
        ordered = sorted(self._differences)
        lowest, highest = ordered[tail], ordered[-1 - tail]
        counted = [min(max(each, lowest), highest) for each in ordered]
        error = statistics.stdev(counted) / (1 - 2 * _TAIL) / math.sqrt(count)
        every = self._schedule.every
        beside = min(BESIDE, every) / every  # of all steps
        return Overhead(share=beside * statistics.fmean(counted), error=beside * _ERRORS * error, count=count)


WINDOW = 8
"""Measurements whose median is reported."""
WAITS = 16
"""Waits for captures whose mean is reported, with how uncertain it is."""
ENOUGH = 3
"""Fewer measurements than this are not reported: one slow copy is no reason to change anything."""
CERTAIN = 5
"""Fewer measurements than this say nothing certain of the median."""
_ERRORS_OF_FEW = {3: 4.3, 4: 3.2, 5: 2.8, 6: 2.6, 7: 2.4, 8: 2.4, 9: 2.3, 10: 2.3, 11: 2.2, 12: 2.2}
"""Student's quantiles: the spread of a few measurements is itself a guess."""
PENDING_AT_MOST = 64
"""Versions whose commit is still expected; older ones were missed."""


def _recent() -> deque[float]:
    return deque(maxlen=WINDOW)


def _recent_waits() -> deque[float]:
    return deque(maxlen=WAITS)


@dataclass(slots=True)
class RankCosts:
    step_s: deque[float] = field(default_factory=_recent)
    stall_s: deque[float] = field(
        default_factory=_recent_waits
    )  # per capture; of one given up, what it would have been
    copy_s: deque[float] = field(default_factory=_recent)
    commit_s: deque[float] = field(default_factory=_recent)
    send_s: dict[str, deque[float]] = field(default_factory=dict)  # by holder
    trained_s: float = 0.0  # in all, since the present schedule began
    stalled_s: float = 0.0
    pending: dict[int, float] = field(default_factory=dict)  # scheduled version -> when its last step ended

    @property
    def stall_share(self) -> float | None:
        return self.stalled_s / self.trained_s if self.trained_s else None

    def begin(self) -> None:
        for measured in (self.stall_s, self.copy_s, self.commit_s):
            measured.clear()
        self.send_s.clear()
        self.pending.clear()
        self.trained_s = self.stalled_s = 0.0


class CaptureCosts:
    def __init__(self) -> None:
        self._schedule = Schedule()
        self.ranks: dict[int, RankCosts] = {}
        self._meters: dict[int, OverheadMeter] = {}  # of all ranks that were ever here: they need long to know enough

    def clear(self) -> None:
        """Forgets all costs at a fence: steps are done again, perhaps on another node."""
        self.ranks.clear()
        for meter in self._meters.values():
            meter.interrupt()

    def begin(self, schedule: Schedule) -> None:
        is_another = schedule.every != self._schedule.every
        self._schedule = schedule
        for meter in self._meters.values():
            meter.reschedule(schedule)
        for costs in self.ranks.values() if is_another else ():
            costs.begin()

    def on_stepped(self, rank: int, news: Stepped, now: float) -> None:
        costs = self.ranks.setdefault(rank, RankCosts())
        if news.step_s > 0:
            costs.step_s.append(news.step_s)
        if news.number > self._schedule.start:
            costs.trained_s += news.step_s
            costs.stalled_s += news.stall_s
        if news.number > self._schedule.start and news.cycle_s is not None:
            self._meter(rank).on_step(news.number - 1, news.cycle_s)
        captured = news.number - 1 if news.captured is None else news.captured
        if news.copy_s is not None and self._schedule.captures(captured):
            costs.stall_s.append(news.stall_s)
            costs.copy_s.append(news.copy_s)
        if self._schedule.captures(news.number):
            costs.pending[news.number] = now
            if len(costs.pending) > PENDING_AT_MOST:
                del costs.pending[min(costs.pending)]

    def _meter(self, rank: int) -> OverheadMeter:
        return self._meters.setdefault(rank, OverheadMeter(self._schedule))

    def on_missed(self, rank: int, news: Missed) -> None:
        if news.cause is Miss.SWITCHED_OFF:
            self._meter(rank).switched_off(news.number)
        else:
            self._meter(rank).interrupt()
        if news.stall_s is not None and self._schedule.captures(news.number):
            self.ranks.setdefault(rank, RankCosts()).stall_s.append(news.stall_s)

    def on_sent(self, rank: int, holder: str, seconds: float) -> None:
        if rank in self.ranks and seconds > 0:
            self.ranks[rank].send_s.setdefault(holder, _recent()).append(seconds)

    def on_committed(self, number: int, now: float) -> None:
        for costs in self.ranks.values():
            if number in costs.pending:
                costs.commit_s.append(now - costs.pending[number])
            costs.pending = {pending: since for pending, since in costs.pending.items() if pending > number}

    def of_ranks(self) -> tuple[CaptureCostReport, ...]:
        return tuple(
            CaptureCostReport(
                rank=rank,
                every=self._schedule.every,
                step_s=statistics.median(costs.step_s),
                stall_s=statistics.fmean(costs.stall_s) if len(costs.stall_s) >= ENOUGH else None,
                commit_s=_typical(costs.commit_s),
                overhead=self._meter(rank).overhead(),
                send_s=_slowest(map(_typical, costs.send_s.values())),
                stall_error_s=_error(costs.stall_s),
                commit_least_s=_at_least(costs.commit_s),
                send_least_s=_slowest(map(_at_least, costs.send_s.values())),
            )
            for rank, costs in self.ranks.items()
            if costs.step_s
        )


def _typical(measured: deque[float]) -> float | None:
    return statistics.median(measured) if len(measured) >= ENOUGH else None


def _slowest(of_holders: Iterable[float | None]) -> float | None:
    return max((each for each in of_holders if each is not None), default=None)


def _at_least(measured: deque[float]) -> float | None:
    """What the median is surely not below, as far as so few can tell: of five or more the smallest, of eight the
    second. Of fewer nothing is certain: the first versions of a job are slow, as connections are made and memory is
    touched."""
    if len(measured) < ENOUGH:
        return None
    return sorted(measured)[len(measured) // WINDOW] if len(measured) >= CERTAIN else 0.0


def _error(measured: deque[float]) -> float:
    count = len(measured)
    if count < ENOUGH:
        return 0.0
    return _ERRORS_OF_FEW.get(count, _ERRORS) * statistics.stdev(measured) / math.sqrt(count)
