"""The overhead budget of this rank: how much time captures may cost its training. It has no clock: times are arguments.

Every completed step earns a share of its time. A capture may make a step wait for as long as has been saved up, and is
given up if it would take longer. So the lost time stays within the budget at any capture interval. The coordinator
chooses the interval; this rank reports to it how long captures make steps wait, as an estimate for one that was given
up.
"""

from __future__ import annotations

from deadpool.protocol.capture_schedule import MAX_EVERY

WARM_UP_STEPS = 2
"""The first steps are slower than later ones: optimizer state appears, code is compiled, memory is touched first. Their
captures have no time limit, since without them the job has no version to resume from, and these steps neither earn nor
spend anything."""


class Budget:
    """The seconds saved up for captures. With `share` 0 there is no limit."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._steps = 0
        self._saved_s = 0.0

    def earn(self, step_s: float) -> None:
        """A step was completed. At most as much is saved as steps of the widest interval would earn."""
        self._steps += 1
        if self._steps >= WARM_UP_STEPS:
            earned_s = self._share * step_s
            self._saved_s = min(self._saved_s + earned_s, MAX_EVERY * earned_s)

    def allowance_s(self, every: int = 1) -> float | None:
        """How long a step may wait for its capture; None: without limit.

        At the widest interval there is no limit, because the job would otherwise get no snapshots at all.
        """
        if not self._share or self._steps < WARM_UP_STEPS or every >= MAX_EVERY:
            return None
        return max(0.0, self._saved_s)

    def spend(self, stall_s: float, every: int = 1) -> None:
        """A wait that had no limit is not charged."""
        if self.allowance_s(every) is not None:
            self._saved_s -= stall_s
