"""The work of the copying thread, and what it reports.

What the copying thread works off: observations of the device, captures, and captures that wait for a slot.

`CaptureReports`: what the copying thread found, told to this rank's core and through it to the coordinator.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import Version
from deadpool.protocol.seal import Geometry, Region
from deadpool.protocol.trainer_core import Capture
from deadpool.snapshot.copying.copy_stats import CaptureCost
from deadpool.snapshot.copying.copying import Boundary
from deadpool.snapshot.copying.slot_copy import SlotCopy
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.process.session import Session

LATE = "the copy was not done when the optimizer began"


@dataclass(slots=True, eq=False)
class Observation:
    version: Version
    boundary: Boundary

    def await_device(self) -> None:
        self.boundary.wait()


@dataclass(frozen=True, slots=True, eq=False)
class CarriedSlot:
    """A slot for a rank that this one carries: it gets the same tensors, and the record of that rank."""

    rank: int
    slot: memoryview
    geometry: Geometry
    record: bytes

    def fill(self, slot: memoryview, geometry: Geometry) -> None:
        sizes: dict[Region, int] = {"unique": geometry.unique_bytes, "replica": geometry.replica_bytes}
        for region, size in sizes.items():
            start, source = self.geometry.offset(region), geometry.offset(region)
            _copy(self.slot[start : start + size], slot[source : source + size])
        start = self.geometry.offset("record")
        self.slot[start : start + len(self.record)] = self.record


def _copy(target: memoryview, source: memoryview) -> None:
    """Lets other threads run meanwhile: an assignment to a slice of a memoryview would stop the script's."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class CaptureTarget:
    """Where a capture goes, and the boundary record that goes with it."""

    capture: Capture
    slot: memoryview
    geometry: Geometry
    record: bytes
    carried: tuple[CarriedSlot, ...] = ()

    @property
    def slots(self) -> tuple[memoryview, ...]:
        return (self.slot, *(each.slot for each in self.carried))

    def write_record(self) -> None:
        start = self.geometry.offset("record")
        self.slot[start : start + len(self.record)] = self.record


@dataclass(slots=True, eq=False)
class OngoingCapture:
    """A capture that has begun and whose copy is not declared yet."""

    target: CaptureTarget
    copy: SlotCopy
    is_late: bool = False  # its slot was granted after the boundary
    settled: bool = False  # the copy was fully issued or given up: there is nothing left to decide
    given_up: bool = False  # by settle(), because the optimizer would have had to wait
    torn: bool = False  # the script wrote to the state while it was copied
    cause: Miss = Miss.TOO_SLOW  # why its version is missed, if it is
    reason: str = LATE
    stall_s: float | None = None  # the wait for which the copy was given up, as predicted

    @property
    def capture(self) -> Capture:
        return self.target.capture

    def await_device(self) -> None:
        self.copy.await_end()


@dataclass(slots=True, eq=False)
class LateCapture:
    """A capture that waits for a slot, and begins when one is granted while the state is still that of its version.

    The copying thread calls `await_target`, which returns None if nothing will be captured. The main thread calls
    `leave` before the state changes; it returns whether a slot was taken before, so that the copy is open or soon is.
    """

    await_target: Callable[[], CaptureTarget | None]
    leave: Callable[[], bool]
    reached_at: float = 0.0
    opened: threading.Event = field(default_factory=threading.Event)  # the copy is open, or there will be none

    def wait(self) -> CaptureTarget | None:
        self.reached_at = time.monotonic()
        return self.await_target()

    def await_device(self) -> None:
        """Nothing was enqueued for it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one capture. A capture that was given up has cost less than a complete one."""

    number: int
    figures: CaptureCost
    given_up: bool


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
