"""What copies and steps have taken lately, and what is to be expected of the next. Figures only; any thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_REMEMBERED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one capture cost."""

    stall_s: float  # that the optimizer waited for it
    copied_bytes: int
    copy_s: float  # from the first byte to the last
    traffic_s: float = 0.0  # by estimate, that kernels lost because the copy read the device's memory beside them

    @property
    def cost_s(self) -> float:
        return self.stall_s + self.traffic_s

    @property
    def bytes_per_s(self) -> float:
        return self.copied_bytes / self.copy_s if self.copy_s > 0 else 0.0


class Pace:
    """Of one lane. The best of the last copies counts: a slow one may have waited for something else, and whoever
    expected too little would never copy again and never learn better. What comes of expecting too much is measured."""

    def __init__(self) -> None:
        self._speeds: deque[float] = deque(maxlen=_REMEMBERED)
        self._windows: deque[float] = deque(maxlen=_REMEMBERED)

    def note_copy(self, nbytes: int, seconds: float) -> None:
        if nbytes > 0 and seconds > 0:
            self._speeds.append(nbytes / seconds)

    def note_window(self, seconds: float) -> None:
        """From a step's boundary to its optimizer."""
        self._windows.append(seconds)

    def copy_s(self, nbytes: int) -> float:
        """How long so much will take; nothing where nothing was measured yet: then it has to be tried."""
        return nbytes / max(self._speeds) if self._speeds else 0.0

    @property
    def window_s(self) -> float:
        """What the next step offers. The shortest of the last two: steps may differ, a longer one will not do."""
        recent = list(self._windows)[-2:]
        return min(recent) if recent else 0.0
