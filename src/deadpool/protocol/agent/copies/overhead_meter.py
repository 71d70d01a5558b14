"""What protection costs a rank, measured while it trains: steps beside a copy are compared with steps beside none.

A snapshot is copied while the next step runs, and sent to its holders in that step or the one after it. Steps that are
further from the last snapshot are bare. With snapshots in every step, or every second one, no step would be: there some
snapshots are left out now and then (`Schedule.left_out_of`). Steps for which the script has switched it off are
bare too. A run of bare steps is compared with the two usual steps before it and the two after it, so that a drift of
the step time cancels out.

Differences are small and noisy. Reported is their mean, in which the few largest and smallest count as less, with its
95 % confidence interval.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

from deadpool.protocol.messages import Overhead
from deadpool.protocol.topology import Schedule

BESIDE = 2
"""Steps from a snapshot on that run beside its copy, or beside what is still sent of it."""
NEIGHBOURS = 2
ENOUGH = 16
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
        if schedule.every != self._schedule.every or schedule.left_out_of != self._schedule.left_out_of:
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
        if count < ENOUGH:
            return None
        tail = int(_TAIL * count)
        ordered = sorted(self._differences)
        lowest, highest = ordered[tail], ordered[-1 - tail]
        counted = [min(max(each, lowest), highest) for each in ordered]
        error = statistics.stdev(counted) / (1 - 2 * _TAIL) / math.sqrt(count)
        every = self._schedule.every
        beside = min(BESIDE, every) / every  # of all steps
        return Overhead(share=beside * statistics.fmean(counted), error=beside * _ERRORS * error, count=count)
