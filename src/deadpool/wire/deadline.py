"""How long a peer may take over one thing as a whole, however many bytes it sends meanwhile.

A stall of this very process counts as one look only: it is not the peer's slowness.
"""

from __future__ import annotations

_LOOKS = 4


class Patience:
    def __init__(self, limit_s: float) -> None:
        self.look_s = limit_s / _LOOKS  # the longest that one wait should last
        self._left_s = limit_s

    def waited(self, seconds: float) -> None:
        self._left_s -= min(seconds, self.look_s)

    @property
    def over(self) -> bool:
        return self._left_s <= 0
