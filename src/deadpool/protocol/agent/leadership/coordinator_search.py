"""In which order a node connects to the coordinators it knows, and how long it waits for each. Pure; shells connect.

All nodes try the same list from its beginning, so they meet at the same place. The leading coordinator welcomes a
node at once, so the first round is quick. A process that accepts and does not lead may be about to be elected by the
other nodes that come. So a node waits longer for the first that accepts in a round than for the rest, and longer with
every round in which one did. In the end most nodes wait at the same place at the same time, whatever their phases.
"""

from __future__ import annotations

ROUNDS = ((0.2, 0.2), (1.0, 0.2), (3.0, 0.5), (6.0, 1.0), (12.0, 1.0))
"""How many times the usual silence a node waits for the first that accepts, and for each of the others."""
ONLY = 3.0
"""How many times the usual silence it waits where the list has one entry."""


class CoordinatorSearch:
    def __init__(self) -> None:
        self._next = self._round = 0
        self._accepted = False  # one has, in this round

    def start_over(self) -> None:
        """A coordinator was found."""
        self._next, self._accepted, self._round = 0, False, 0

    def choose(self, count: int) -> int:
        """Which of `count` to try now."""
        if self._next >= count:
            self._round += self._accepted  # where none accepted, no longer wait would have helped
            self._next, self._accepted = 0, False
        self._next += 1
        return self._next - 1

    def is_over(self, count: int) -> bool:
        """All were tried in this round: a pause is due."""
        return self._next >= count

    def accepted(self, count: int) -> float:
        """How many times the usual silence to wait for a welcome."""
        first, self._accepted = not self._accepted, True
        for_first, for_others = ROUNDS[min(self._round, len(ROUNDS) - 1)]
        return ONLY if count == 1 else for_first if first else for_others
