"""Which versions are captured, across changes of the interval. Kept alike by the coordinator and by every trainer.

Rule 4, every rank captures the same versions: a schedule decides from its `start` on, the one before it decides below.
Intervals are powers of two times the one the job began with, so of two schedules one captures all that the other does:
whoever hears late of a wider one has captured too much, which the permit passes; of a narrower one too little, which it
says (`overlooked`).
"""

from __future__ import annotations

from deadpool.protocol.topology import Schedule

MAX_EVERY = 4096
"""Steps between two snapshots, at most, unless asked for more: beyond that a job could as well write checkpoints."""


class Timetable:
    def __init__(self, first: Schedule, *others: Schedule) -> None:
        self._schedules = [first, *others]

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        return tuple(self._schedules)

    @property
    def newest(self) -> Schedule:
        """Which may begin only in some steps."""
        return self._schedules[-1]

    def captures(self, number: int) -> bool:
        begun = [schedule for schedule in self._schedules if schedule.start <= number]
        return bool(begun) and begun[-1].captures(number)

    def add(self, schedule: Schedule, *, settled: int) -> None:
        """Nobody will ask about versions below `settled` any more."""
        assert schedule.start >= self.newest.start, (schedule, self.newest)
        following = [*self._schedules[1:], schedule]
        open_ones = [old for old, new in zip(self._schedules, following, strict=True) if new.start > settled]
        self._schedules = [*open_ones, schedule]

    def overlooked(self, schedule: Schedule, up_to: int) -> list[int]:
        """Versions that were decided on before this schedule was heard of, and that it would have captured."""
        numbers = range(schedule.start, up_to + 1)
        return [number for number in numbers if schedule.captures(number) and not self.captures(number)]
