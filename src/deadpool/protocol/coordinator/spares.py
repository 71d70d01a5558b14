"""Whether there are spares."""

from __future__ import annotations

from collections.abc import Iterable

from deadpool.protocol.coordinator.members import Member
from deadpool.protocol.coordinator.outbox import Outbox


class SpareWatch:
    """Says when the last one is gone: the next loss would be waited out. A job that was started without any knows."""

    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._had_some = False

    def look(self, members: Iterable[Member]) -> None:
        """Whenever a node has come, gone, or taken a seat."""
        has_some = any(is_spare(member) for member in members)
        if self._had_some and not has_some:
            self._out.emit("no_spare", reason="no spare is left: after the next loss the job waits for one")
        self._had_some = has_some


def is_spare(member: Member) -> bool:
    return member.position is None and not member.leaving
