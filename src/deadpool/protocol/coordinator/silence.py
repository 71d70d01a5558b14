"""Which nodes have said nothing for too long."""

from __future__ import annotations

from collections.abc import Mapping

from deadpool.protocol.coordinator.members import Member


class SilenceWatch:
    """Does not look at every node after each that was heard: nobody falls silent before the one that was heard of
    longest ago, as of the last look, could have."""

    def __init__(self, node_s: float) -> None:
        self._node_s = node_s
        self._nobody_before: float | None = None

    def excuse(self) -> None:
        """Everybody was heard of later than it seemed."""
        self._nobody_before = None

    def earliest(self, members: Mapping[str, Member]) -> float | None:
        """When it is worth to look again."""
        if not members:
            self._nobody_before = None
        elif self._nobody_before is None:
            self._nobody_before = min(member.heard for member in members.values()) + self._node_s
        return self._nobody_before

    def look(self, members: Mapping[str, Member], now: float) -> list[str]:
        self._nobody_before = None
        return [member.node for member in members.values() if now >= member.heard + self._node_s]
