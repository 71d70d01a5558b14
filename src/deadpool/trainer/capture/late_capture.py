"""A capture that waits for its slot, and the budget that captures are held to.

`SlotWait` waits for the slot of a version that found none at its boundary, until the optimizer is about to change
the state.

`Budget`: the overhead budget of this rank: how much time captures may cost its training. It has no clock: times are
arguments.

Every completed step earns a share of its time. A capture may make a step wait for as long as has been saved up, and
is given up if it would take longer. So the lost time stays within the budget at any capture interval. The
coordinator chooses the interval; this rank reports to it how long captures make steps wait, as an estimate for one
that was given up.
"""

from __future__ import annotations

from collections.abc import Callable

from deadpool.protocol.permits import MAX_EVERY
from deadpool.protocol.trainer_core import Capture, SlotAwaited
from deadpool.trainer.capture.capture_tasks import CaptureTarget, LateCapture
from deadpool.trainer.process.session import Session


def make_late_capture(
    session: Session, awaited: SlotAwaited, make_target: Callable[[Capture], CaptureTarget]
) -> LateCapture:
    wait = SlotWait(session, awaited)

    def await_target() -> CaptureTarget | None:
        capture = wait.take()
        return make_target(capture) if capture is not None else None

    return LateCapture(await_target, wait.leave)


class SlotWait:
    """Either a slot is taken for the version, or the wait is left and the version is missed, never both: the session's
    lock decides which comes first."""

    def __init__(self, session: Session, awaited: SlotAwaited) -> None:
        self._session, self._awaited = session, awaited
        self._capture: Capture | None = None
        self._is_left = False

    def take(self) -> Capture | None:
        """Waits for the slot. Returns None if the wait was left, or a fence came. For the copying thread."""
        self._session.wait(lambda: self._try_to_take() or self._is_over() or None)
        return self._capture

    def leave(self) -> bool:
        """Returns whether a slot was taken; if none was, the version is missed. For the main thread."""
        core, changed = self._session.core, self._session.changed
        with changed:
            missed = core.slot_never_came(self._awaited) if self._capture is None and not self._is_left else None
            self._is_left = True
            changed.notify_all()
        if missed is not None:
            self._session.send(missed)
        return self._capture is not None

    def _try_to_take(self) -> bool:
        if not self._is_left:
            self._capture = self._session.core.capture_late(self._awaited)
        return self._capture is not None

    def _is_over(self) -> bool:
        return self._is_left or self._session.core.is_aborted


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
