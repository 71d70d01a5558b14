"""In which order a node turns to coordinators, and for how long. Pure; the shells connect.

All nodes try the same list from its beginning, so they meet. Who is in office welcomes at once, so the first round is
quick. Whoever accepts but is not in office may be about to be elected by the others who come: the first who accepts in
a round is waited for longer than the rest, and longer with every round in which somebody did, so that in the end most
nodes are at the same place at the same time, whatever their phases.
"""

from __future__ import annotations

ROUNDS = ((0.2, 0.2), (1.0, 0.2), (3.0, 0.5), (6.0, 1.0), (12.0, 1.0))
"""How many times the usual silence the first is waited for, and each of the others."""
ONLY = 3.0
"""And one who is the only one there is."""


class Search:
    def __init__(self) -> None:
        self._next = self._round = 0
        self._accepted = False  # somebody, in this round

    def start_over(self) -> None:
        """There is a coordinator."""
        self._next, self._accepted, self._round = 0, False, 0

    def choose(self, count: int) -> int:
        """Which of `count` to try now."""
        if self._next >= count:
            self._round += self._accepted  # where nobody is, nobody has missed us
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
