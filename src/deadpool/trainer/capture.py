"""The thread that copies a version into its slot while the next forward and backward run."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from deadpool.protocol.seal import Geometry
from deadpool.protocol.trainer import Capture
from deadpool.snapshot.slot import clear_seal
from deadpool.snapshot.state import ProtectedState
from deadpool.trainer.ambush import Ambushes


class Capturer:
    """At most one capture at a time. A copy is declared before the thread is idle again, so that whoever has waited
    for it to be idle knows that nothing more will be said of it."""

    def __init__(
        self,
        state: ProtectedState,
        ambushes: Ambushes,
        *,
        on_copied: Callable[[Capture, int], None],
        on_given_up: Callable[[Capture, str], None],
    ) -> None:
        self._state, self._ambushes = state, ambushes
        self._on_copied, self._on_given_up = on_copied, on_given_up
        self._work: tuple[Capture, memoryview, Geometry, bytes] | None = None
        self._cancelled = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, capture: Capture, slot: memoryview, geometry: Geometry, record: bytes) -> None:
        self.finish(None)
        with self._changed:
            self._cancelled = False
            self._work = (capture, slot, geometry, record)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="deadpool-capture", daemon=True)
            self._thread.start()

    def finish(self, patience_s: float | None) -> None:
        """Before the optimizer overwrites anything: waits for the copy, not longer than allowed, else gives it up.

        Returns only when nobody reads the state any more.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_idle, patience_s):
                self._cancelled = True
                self._changed.wait_for(self._is_idle)

    def cancel(self) -> None:
        """Ends a capture at once and waits for the thread to let go of slot and state."""
        self.finish(0.0)

    def _is_idle(self) -> bool:
        return self._work is None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_idle())
                assert self._work is not None
                work = self._work
            self._capture(*work)
            with self._changed:
                self._work = None
                self._changed.notify_all()

    def _capture(self, capture: Capture, slot: memoryview, geometry: Geometry, record: bytes) -> None:
        """A copy that fails is a version this rank missed; training goes on."""
        try:
            whole = self._copy(capture.version.number, slot, geometry, record)
            reason = "the copy was not done when the optimizer began"
        except Exception as error:
            traceback.print_exc()
            whole, reason = False, f"{type(error).__name__}: {error}"
        if whole:
            self._ambushes.captured(capture.version.number)
            self._on_copied(capture, len(record))
        else:
            self._on_given_up(capture, reason)

    def _copy(self, number: int, slot: memoryview, geometry: Geometry, record: bytes) -> bool:
        clear_seal(slot)
        start = geometry.offset("record")
        slot[start : start + len(record)] = record
        cancelled = self._ambushes.capturing(number, lambda: self._cancelled)
        return self._state.copy_bulk(slot, geometry, cancelled=cancelled)
