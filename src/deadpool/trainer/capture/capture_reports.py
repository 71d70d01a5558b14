"""What the copying thread found, told to this rank's core and through it to the coordinator."""

from __future__ import annotations

from collections.abc import Mapping

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import Version
from deadpool.protocol.trainer_core import Capture
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.process.session import Session


class CaptureReports:
    """Reports captures. Its methods are called by the copying thread, and by the main thread where there is nothing to
    wait for.
    """

    def __init__(self, session: Session, state: ProtectedState) -> None:
        self._session, self._state = session, state
        self._most_set_aside = 0
        self.device_error: Exception | None = None

    def observed(self, version: Version) -> None:
        with self._session.changed:
            self._session.core.observed(version)
            self._session.changed.notify_all()

    def failed(self, error: Exception) -> None:
        with self._session.changed:
            self.device_error = error
            self._session.changed.notify_all()

    def copied(self, capture: Capture, record_bytes: int, carried: Mapping[int, int]) -> None:
        with self._session.changed:
            captured = self._session.core.copied(capture, record_bytes)
            others = self._session.core.copied_carried(capture, carried) if carried else []
        for each in (*others, captured) if captured is not None else ():
            self._session.send(each)

    def set_aside(self, capture: Capture, nbytes: int) -> None:
        """Tells only when it is more than ever before: it may be the same in every capture."""
        if nbytes > self._most_set_aside:
            self._most_set_aside = nbytes
            self._session.emit(
                "set_aside", number=capture.version.number, bytes=nbytes, device_bytes=self._state.device_bytes
            )

    def given_up(self, capture: Capture, cause: Miss, reason: str, stall_s: float | None) -> None:
        self._session.leave_if_device_broke()
        with self._session.changed:
            missed = self._session.core.gave_up(capture, cause, reason, stall_s)
        if missed is not None:
            self._session.send(missed)
