"""Waits for the slot of a version that found none at its boundary, until the optimizer is about to change the state."""

from __future__ import annotations

from collections.abc import Callable

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
