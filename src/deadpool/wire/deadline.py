"""How long a peer may take for one frame or handshake as a whole, however many bytes it sends meanwhile.

A stall of this process counts as one wait at most, because it is not the peer that is slow then.
"""

from __future__ import annotations

_WAITS = 4


class PeerDeadline:
    """The caller waits for `wait_limit_s` at most and then says how long it waited."""

    def __init__(self, limit_s: float) -> None:
        self.wait_limit_s = limit_s / _WAITS  # the longest that one wait should last
        self._left_s = limit_s

    def waited(self, seconds: float) -> None:
        self._left_s -= min(seconds, self.wait_limit_s)

    @property
    def over(self) -> bool:
        return self._left_s <= 0
