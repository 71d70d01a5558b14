"""The actions that wait in `job.on_final` until their step is final. They are closures, so they end with the process.

The boundary record carries how many actions wait for each step, so that a process that takes over the rank can report
which ones were lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

Action = Callable[[], None]


class FinalActions:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, Action]] = []
        self._settled = 0  # actions of steps below this one have run
        self._redone = range(0)  # steps that are computed again although they were final
        self._recorded: dict[int, int] = {}  # by step: how many actions waited at the version that was restored

    def add(self, step: int, action: Action) -> None:
        if step not in self._redone:
            self._waiting.append((step, action))

    def settle(self, final: int) -> None:
        """Runs the actions of steps below `final`. If one raises, those after it run at the next call."""
        self._settled = max(self._settled, final)
        for due in [each for each in self._waiting if each[0] < final]:
            self._waiting.remove(due)
            due[1]()

    def counts(self) -> dict[int, int]:
        return dict(Counter(step for step, _ in self._waiting))

    def restore(self, counts: dict[int, int]) -> None:
        self._recorded = counts

    def resume(self, number: int) -> list[int]:
        """Steps from `number` on are computed again. Returns the steps whose actions are not in this process and may
        never have run."""
        self._waiting = [(step, action) for step, action in self._waiting if step < number]
        self._redone = range(number, self._settled)
        own, recorded, self._recorded = self.counts(), self._recorded, {}
        return sorted(step for step in recorded if self._settled <= step < number and step not in own)
