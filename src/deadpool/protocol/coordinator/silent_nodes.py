"""Nodes that were taken for lost and may come back, and what a node that did is told.

A node that fell silent may only have been cut off or stopped. When it calls again, others may sit in its seats: it is
fenced like everybody, says what its arena has, and with a plan that has no order for it its trainers end, what nobody
needs is overwritten, and it is a spare. Until then its copies can serve a plan that needs them.
"""

from __future__ import annotations

from collections.abc import Iterable

from deadpool.protocol.coordinator.commits import Commits
from deadpool.protocol.identity import Generation
from deadpool.protocol.messages import Plan
from deadpool.protocol.quorum import Changes


class Absences:
    def __init__(self) -> None:
        self._silent: list[str] = []  # lost since all ranks last ran, without a sign that they are dead
        self._ran: frozenset[str] = frozenset()  # who sat when all ranks last ran, or were told all it takes
        self._given_up = False

    def fell_silent(self, who: str) -> None:
        """Or said that it goes elsewhere: in neither case is it known to be dead."""
        if who not in self._silent:
            self._silent.append(who)
        self._given_up = False

    def came_back(self, node: str) -> None:
        self._silent = [who for who in self._silent if who != node]

    def may_run(self, seats: Iterable[str]) -> None:
        """These nodes need us no more for their ranks to run."""
        self._ran = frozenset(seats)

    def end(self, seats: Iterable[str]) -> None:
        """All ranks run again, on these nodes: nobody is needed back."""
        self._silent.clear()
        self.may_run(seats)

    def give_up(self) -> None:
        self._given_up = True

    @property
    def hoped_for(self) -> list[str]:
        """Who may come back with copies that nobody else has."""
        return [] if self._given_up else list(self._silent)

    @property
    def all_may_run(self) -> bool:
        """Who ran last only fell silent, every one of them: nobody has stopped, and they may go on among themselves.
        One that is at rest, or dead, is enough to stop all."""
        return bool(self._ran) and self._ran <= set(self.hoped_for)


def dismissal(generation: Generation, cause: str, commits: Commits, *, quarantined: bool) -> Plan:
    """What a node is told that holds no rank in a generation that goes on without it. That it has gone is told too: the
    node has not heard its plan."""
    return Plan(
        generation=generation,
        cause=cause,
        resume=commits.resume,
        permit=commits.permit,
        store_rank=0,
        changes=Changes(since=generation),
        quarantined=quarantined,
    )
