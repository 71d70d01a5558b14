"""Tells whether a peer was lost: a connection has closed, and no peer had said that it destroys the group.

A process that destroys a group counts that in the store, under the group's name, before a connection of it closes. A
connection does not tell which rank it leads to. So a connection that breaks between a peer's announcement and the end
of that peer's own connection is taken for the announced one. That hides the loss of a peer only while the default group
itself is being destroyed, and only until the agents notice the loss. Main thread only.
"""

from __future__ import annotations

import contextlib
from collections import Counter

from deadpool.backend.store import StoreConnection
from deadpool.backend.supervisor import Supervisor
from deadpool.errors import GroupError


class PeerLoss:
    def __init__(self, supervisor: Supervisor, connection: StoreConnection) -> None:
        self._supervisor, self._connection = supervisor, connection
        self._was_lost = False  # a loss that was seen when a group was destroyed
        self._excused: Counter[str] = Counter()  # by group: connections that peers have closed on purpose

    def reset(self) -> None:
        """New groups are made in a new store: announcements about groups of the same names do not concern them."""
        self._was_lost, self._excused = False, Counter()

    def has_happened(self) -> bool:
        """Whether a connection has closed that no peer closed on purpose. No collective over it can have succeeded
        since. Always False while groups are aborted, so the caller checks the abort flag afterwards."""
        return self._was_lost or any(
            not self._is_announced(*each) for each in self._supervisor.missing_connections().items()
        )

    def announce(self, groups: tuple[str, ...]) -> None:
        """This process is about to destroy these groups: without the announcement its peers would take it for lost.

        A loss that was seen before is remembered, because a script may destroy a group after it failed.
        """
        store = self._connection.current
        if store is None or self._supervisor.is_aborted:
            return
        self._was_lost = self.has_happened()
        for each in groups:
            with contextlib.suppress(GroupError, RuntimeError):  # peers that miss the announcement wait for a fence
                store.add(_key(each), 1)
            self._supervisor.forget(each)

    def _is_announced(self, groups: tuple[str, ...], count: int) -> bool:
        """Whether peers have announced that they destroy as many of these groups as connections are missing."""
        store = self._connection.current
        if store is None:
            return False
        try:
            announced = {each: store.add(_key(each), 0) - self._excused[each] for each in groups}
        except (GroupError, RuntimeError):
            return False
        if sum(announced.values()) < count:
            return False
        for each, ended in announced.items():
            taken = min(ended, count)
            count -= taken
            self._excused[each] += taken
            self._supervisor.excuse_missing(each, taken)
        return True


def _key(group: str) -> str:
    return f"closed/{group}"
