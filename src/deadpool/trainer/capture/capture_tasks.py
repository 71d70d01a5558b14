"""What the copying thread works off and reports: observations of the device, captures, and captures that wait for a
slot.

`SlotWait` waits for the slot of a version that found none at its boundary, until the optimizer is about to change the
state.

`Budget` is the overhead budget of this rank: how much time captures may cost its training. It has no clock: times are
arguments. Every completed step earns a share of its time. A capture may make a step wait for as long as has been saved
up, and is given up if it would take longer. So the lost time stays within the budget at any capture interval. The
coordinator chooses the interval; this rank reports to it how long captures make steps wait, as an estimate for one that
was given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import Version
from deadpool.protocol.permits import MAX_EVERY
from deadpool.protocol.seal import Geometry, Region
from deadpool.protocol.trainer_core import Capture, SlotAwaited
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
