"""The thread that copies a version into its slot while the next forward and backward run."""

from __future__ import annotations

import threading
from collections.abc import Callable

from deadpool.protocol.seal import Geometry
from deadpool.protocol.trainer import Capture
from deadpool.snapshot.slot import clear_seal
from deadpool.snapshot.state import ProtectedState


class Capturer:
    """At most one capture at a time. `on_copied` runs on the thread, `on_given_up` on whoever gave it up."""

    def __init__(
        self,
        state: ProtectedState,
        *,
        on_copied: Callable[[Capture, int], None],
        on_given_up: Callable[[Capture, str], None],
    ) -> None:
        self._state, self._on_copied, self._on_given_up = state, on_copied, on_given_up
        self._work: tuple[Capture, memoryview, Geometry, bytes] | None = None
        self._wake = threading.Condition()
        self._cancelled = False
        self._thread: threading.Thread | None = None

    def begin(self, capture: Capture, slot: memoryview, geometry: Geometry, record: bytes) -> None:
        with self._wake:
            assert self._work is None, "a capture is under way"
            self._cancelled = False
            self._work = (capture, slot, geometry, record)
            self._wake.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="deadpool-capture", daemon=True)
            self._thread.start()

    def finish(self, patience_s: float) -> float:
        """Before the optimizer overwrites anything: waits for the copy, not longer than allowed, else gives it up.

        Returns only when nobody reads the state any more.
        """
        with self._wake:
            capture = self._work[0] if self._work else None
            if capture is None or self._wake.wait_for(self._is_idle, patience_s):
                return 0.0
        self.cancel()
        self._on_given_up(capture, f"the copy was not done when the optimizer began, {patience_s * 1e3:.1f} ms allowed")
        return patience_s

    def cancel(self) -> None:
        """Ends a capture without a word about it and waits for the thread to let go of slot and state."""
        with self._wake:
            self._cancelled = True
            self._wake.wait_for(self._is_idle)

    def _is_idle(self) -> bool:
        return self._work is None

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._work is not None)
                assert self._work is not None
                capture, slot, geometry, record = self._work
            whole = self._copy(slot, geometry, record)
            with self._wake:
                whole = whole and not self._cancelled
                self._work = None
                self._wake.notify_all()
            if whole:
                self._on_copied(capture, len(record))

    def _copy(self, slot: memoryview, geometry: Geometry, record: bytes) -> bool:
        clear_seal(slot)
        start = geometry.offset("record")
        slot[start : start + len(record)] = record
        return self._state.copy_bulk(slot, geometry, cancelled=lambda: self._cancelled)
