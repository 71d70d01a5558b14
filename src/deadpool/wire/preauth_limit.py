"""Connections that have not proved the secret yet: how many there may be, and which has to go. Values and time only.

Members that connect all at once wait in the kernel's queue and are let in as fast as handshakes end. Whoever occupies
a place and does nothing loses it to the next connection. There is no lock: each listener has one thread or
loop that asks.
"""

from __future__ import annotations

from typing import Generic, TypeVar

LIMIT = 128
GRACE_S = 0.5  # a handshake takes milliseconds: one that has not ended by then is stuck

_Peer = TypeVar("_Peer")


class PreauthLimit(Generic[_Peer]):
    def __init__(self, limit: int = LIMIT, grace_s: float = GRACE_S) -> None:
        self._limit, self._grace_s = limit, grace_s
        self._since: dict[_Peer, float] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._since)

    def arrived(self, peer: _Peer, now: float) -> None:
        self._since[peer] = now

    def known(self, peer: _Peer) -> None:
        """Counts a peer no more: it has proved the secret, or it is gone."""
        self._since.pop(peer, None)

    def wait_s(self, now: float) -> float:
        """How long to wait before the next one is let in; 0: now, after crowded_out() has made room."""
        if len(self._since) < self._limit:
            return 0.0
        return max(0.0, next(iter(self._since.values())) + self._grace_s - now)

    def crowded_out(self, now: float) -> _Peer | None:
        """The connection that has to be closed for the next one, if any."""
        if len(self._since) < self._limit or self.wait_s(now) > 0:
            return None
        oldest = next(iter(self._since))
        del self._since[oldest]
        return oldest
