"""Tells people, once each, that a disk takes nothing any more and that it takes everything again."""

from __future__ import annotations

from collections.abc import Callable

from deadpool.events.event import Event
from deadpool.events.log import Trouble

STORAGE_FACT = "storage"
"""The fact by which a node tells what its disk does not take."""
DROPPED_FACT = "storage_dropped"
"""The fact by which it tells what is lost for ever, because it waited for too long."""


class StorageWatch:
    def __init__(
        self,
        what: str,
        trouble: Callable[[], Trouble | None],
        tell: Callable[[Event], None],
        *,
        dropped: Callable[[], int],
        node: str | None = None,
    ) -> None:
        """`what` is written there, `trouble` says why it is not, and `dropped` how many are lost for ever by now."""
        self._what, self._trouble, self._tell, self._node = what, trouble, tell, node
        self._dropped, self._dropped_before = dropped, 0
        self._is_told = False

    def look(self) -> None:
        """Now and then."""
        trouble = self._trouble()
        if trouble is not None and not self._is_told:
            self._is_told = True
            detail = {"what_waits": self._what, "reason": trouble.reason, "waiting": trouble.waiting}
            self._tell(Event(what="storage_failed", node=self._node, detail=detail))
        elif trouble is None and self._is_told:
            self._is_told = False
            dropped = self._dropped()
            back = {"what_waits": self._what, "dropped": dropped - self._dropped_before}
            self._dropped_before = dropped
            self._tell(Event(what="storage_back", node=self._node, detail=back))

    def facts(self) -> dict[str, object] | None:
        """Describes what waits for the disk, for `deadpool status`. None means that nothing waits."""
        trouble = self._trouble()
        return None if trouble is None else {"what_waits": self._what, "node": self._node, **trouble._asdict()}

    def losses(self) -> dict[str, object] | None:
        """For `deadpool status`, as long as the process lives; None: nothing was dropped."""
        dropped = self._dropped()
        return {"what": self._what, "node": self._node, "dropped": dropped} if dropped else None
