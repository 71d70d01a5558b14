"""What captures may cost this rank's training, and what they did cost. Without clocks: times are arguments.

Every completed step earns a share of its time; a capture may make a step wait for as long as has been saved up, and is
given up else. So the time lost stays within the budget, whatever the interval is. The interval is the coordinator's:
it learns from here how long a capture makes a step wait, also by estimate of one that was given up.
"""

from __future__ import annotations

from deadpool.protocol.capture_schedule import MAX_EVERY

WARM_UP_STEPS = 2
"""The first steps are like no other: state appears, code is compiled, memory is touched for the first time. Their
captures are waited for, since without them a job has nothing to go back to, and neither cost nor earn anything."""


class Budget:
    """Seconds saved up for captures. `share` 0: no limit."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._steps = 0
        self._saved_s = 0.0

    def earn(self, step_s: float) -> None:
        """A step was completed. Not more is kept than the widest interval would bring."""
        self._steps += 1
        if self._steps >= WARM_UP_STEPS:
            earned_s = self._share * step_s
            self._saved_s = min(self._saved_s + earned_s, MAX_EVERY * earned_s)

    def allowance_s(self, every: int = 1) -> float | None:
        """How long a step may wait for its capture; None: as long as it takes.

        At the widest interval there is no limit: beyond it a job would have no snapshots at all.
        """
        if not self._share or self._steps < WARM_UP_STEPS or every >= MAX_EVERY:
            return None
        return max(0.0, self._saved_s)

    def spend(self, stall_s: float, every: int = 1) -> None:
        """What a wait without a limit took is not held against later ones."""
        if self.allowance_s(every) is not None:
            self._saved_s -= stall_s
