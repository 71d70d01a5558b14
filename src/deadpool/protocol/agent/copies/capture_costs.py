"""What captures have cost a node's ranks lately, as its agent measures it.

Only measurements under the present schedule count: another interval says little about this one. The time from the end
of a version's step to the permit that commits it is measured here and nowhere else. The agent sees both ends by one
clock, so this time includes the copy, the checksum, the slowest holder, the permit's way back and the lag of other
ranks (L1 + L2 + skew in the protocol's condition on the interval).
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from deadpool.protocol.agent.copies.overhead_meter import OverheadMeter
from deadpool.protocol.causes import Miss
from deadpool.protocol.messages import CaptureCostReport, Missed, Stepped
from deadpool.protocol.topology import Schedule

WINDOW = 8
"""Measurements whose median is reported."""
ENOUGH = 3
"""Fewer measurements than this are not reported: one slow copy is no reason to change anything."""
PENDING_AT_MOST = 64
"""Versions whose commit is still expected; older ones were missed."""


def _recent() -> deque[float]:
    return deque(maxlen=WINDOW)


@dataclass(slots=True)
class RankCosts:
    step_s: deque[float] = field(default_factory=_recent)
    stall_s: deque[float] = field(default_factory=_recent)  # per capture; of one given up, what it would have been
    copy_s: deque[float] = field(default_factory=_recent)
    commit_s: deque[float] = field(default_factory=_recent)
    trained_s: float = 0.0  # in all, since the present schedule began
    stalled_s: float = 0.0
    pending: dict[int, float] = field(default_factory=dict)  # scheduled version -> when its last step ended

    @property
    def stall_share(self) -> float | None:
        return self.stalled_s / self.trained_s if self.trained_s else None

    def begin(self) -> None:
        for measured in (self.stall_s, self.copy_s, self.commit_s):
            measured.clear()
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
        self._schedule = schedule
        for meter in self._meters.values():
            meter.reschedule(schedule)
        for costs in self.ranks.values():
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
                stall_s=_typical(costs.stall_s),
                commit_s=_typical(costs.commit_s),
                overhead=self._meter(rank).overhead(),
            )
            for rank, costs in self.ranks.items()
            if costs.step_s
        )


def _typical(measured: deque[float]) -> float | None:
    return statistics.median(measured) if len(measured) >= ENOUGH else None
