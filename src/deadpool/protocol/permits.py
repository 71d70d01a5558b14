"""Which versions are captured, and what may be overwritten.

`may_overwrite`: what a permit allows to be overwritten. Agents free slots by this rule, and the coordinator's ledger
follows it.

`CaptureSchedule`: which versions are captured, across changes of the interval. The coordinator and every trainer
keep the same.

Rule 4 (every rank captures the same versions): a schedule decides from its `start` on, and the one before it decides
below. Intervals are powers of two times the first one, so of two schedules one captures all that the other does, but
for a few that are left out now and then. A trainer that hears late of a change has captured too much, which the
permit passes, or too little, which it reports (`overlooked`).
"""

from __future__ import annotations

from deadpool.protocol.identity import Schedule, Version
from deadpool.protocol.messages import Permit


def may_overwrite(version: Version, permit: Permit) -> bool:
    """Rule 5 (what a permit lets be overwritten). `keep_from` alone is not enough: the watermark lies below it."""
    return version != permit.watermark and version.number < permit.keep_from


MAX_EVERY = 4096
"""The most steps between two snapshots, unless asked for more: a job could as well write checkpoints then."""


class CaptureSchedule:
    def __init__(self, first: Schedule, *others: Schedule) -> None:
        self._schedules = [first, *others]

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return tuple(self._schedules)

    @property
    def newest(self) -> Schedule:
        """The newest schedule. It may begin only in some steps."""
        return self._schedules[-1]

    def captures(self, number: int) -> bool:
        begun = [schedule for schedule in self._schedules if schedule.start <= number]
        return bool(begun) and begun[-1].captures(number)

    def add(self, schedule: Schedule, *, settled: int) -> None:
        """Versions below `settled` are not asked about any more."""
        assert schedule.start >= self.newest.start, (schedule, self.newest)
        following = [*self._schedules[1:], schedule]
        open_ones = [old for old, new in zip(self._schedules, following, strict=True) if new.start > settled]
        self._schedules = [*open_ones, schedule]

    def overlooked(self, schedule: Schedule, up_to: int) -> list[int]:
        """Versions that this schedule would have captured, and that were passed over before it was known."""
        numbers = range(schedule.start, up_to + 1)
        return [number for number in numbers if schedule.captures(number) and not self.captures(number)]
