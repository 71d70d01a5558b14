"""The thread that watches versions come true on the device and copies them into slots while the next step runs.

Two kinds of tasks, in order: a version whose work was enqueued is *observed* when the device has come that far, and a
capture is advanced until its copy is whole or was given up. The main thread waits for neither. When the optimizer is
next it decides at once whether the copy may go on, by what the optimizer would have to wait for it (settle); that
waiting is the device's.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deadpool.protocol.identity import Version
from deadpool.protocol.seal import Geometry
from deadpool.protocol.trainer_core import Capture
from deadpool.snapshot.copy_stats import CaptureCost
from deadpool.snapshot.copying import Boundary
from deadpool.snapshot.slot import clear_seal
from deadpool.snapshot.slot_copy import SlotCopy
from deadpool.snapshot.state import ProtectedState
from deadpool.trainer.injected_fault import PendingInjections

_LATE = "the copy was not done when the optimizer began"
_WRITTEN = (
    "parameters or optimizer state were written to before an optimizer stepped, while they were copied: from now on "
    "copies are made at the end of a step, not beside the next one"
)
_REMEMBERED_COSTS = 8


@dataclass(slots=True, eq=False)
class Observation:
    version: Version
    boundary: Boundary

    def await_device(self) -> None:
        self.boundary.wait()


@dataclass(slots=True, eq=False)
class Flight:
    """A capture on its way."""

    capture: Capture
    slot: memoryview
    geometry: Geometry
    record: bytes
    copy: SlotCopy
    settled: bool = False  # all issued or given up: nothing is decided any more
    torn: bool = False  # the script wrote while it was copied
    reason: str = _LATE
    stall_s: float | None = None  # that it would have cost, had it not been given up for that

    def await_device(self) -> None:
        self.copy.await_end()

    def write_record(self) -> None:
        start = self.geometry.offset("record")
        self.slot[start : start + len(self.record)] = self.record


@dataclass(frozen=True, slots=True)
class Cost:
    """What the capture of a version cost. One that was given up has cost less than it would have."""

    number: int
    figures: CaptureCost
    given_up: bool


class Capturer:
    """A copy is declared before the thread is idle again, so that whoever has waited for it to be idle knows that
    nothing more will be said of it."""

    def __init__(
        self,
        state: ProtectedState,
        pending_injections: PendingInjections,
        *,
        allowance_s: Callable[[], float | None],
        on_observed: Callable[[Version], None],
        on_copied: Callable[[Capture, int], None],
        on_given_up: Callable[[Capture, str, float | None], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """`allowance_s`: how long the next optimizer may be made to wait; None is for ever."""
        self._state, self._pending_injections, self._allowance_s = state, pending_injections, allowance_s
        self._on_observed, self._on_copied = on_observed, on_copied
        self._on_given_up, self._on_error = on_given_up, on_error
        self._tasks: deque[Observation | Flight | None] = deque()  # the first is being worked at; None: the end
        self._open: Flight | None = None
        self._at_once = False  # the script writes before its optimizer steps: no copy can be made beside a step
        self._unread: deque[Flight] = deque()  # settled, but the device has not told yet what they cost
        self._costs: deque[Cost] = deque(maxlen=_REMEMBERED_COSTS)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    # --- the main thread ---------------------------------------------------------------------------------------------

    def reached(self, version: Version, boundary: Boundary) -> None:
        """All work that makes `version` is enqueued. Where it is done already, this is said here and now."""
        if boundary.done():
            self._on_observed(version)
        else:
            self._enqueue(Observation(version, boundary))

    def begin(self, capture: Capture, slot: memoryview, geometry: Geometry, record: bytes) -> None:
        """Of the state that the last record() found. A copy that fails is a version this rank missed."""
        self.settle()
        try:
            clear_seal(slot)
            copy = self._state.open_copy(slot, geometry)
        except Exception as error:
            traceback.print_exc()
            self._on_given_up(capture, f"{type(error).__name__}: {error}", None)
            return
        self._open = Flight(capture, slot, geometry, record, copy)
        self._enqueue(self._open)
        if self._at_once:
            self._settle(self._open, self._commit)

    def settle(self) -> None:
        """Before anything of the state is overwritten, by the optimizer or by the next boundary's clones."""
        flight = self._open
        if flight is None:
            return
        if not flight.settled:
            self._settle(flight, self._decide)
        flight.copy.hold()

    def _settle(self, flight: Flight, decide: Callable[[Flight], None]) -> None:
        self._read_costs()  # what the last ones took is what this one will take
        if self._state.is_untouched:
            decide(flight)
        else:
            self._give_up_torn(flight)
        self._unread.append(flight)

    def _give_up_torn(self, flight: Flight) -> None:
        self._at_once = True
        flight.reason, flight.torn, flight.settled = _WRITTEN, True, True
        flight.copy.give_up()

    def costs(self) -> Iterator[Cost]:
        """Of each capture once, as soon as the device has told."""
        self._read_costs()
        while self._costs:
            yield self._costs.popleft()

    def finish(self) -> None:
        """Waits until everything that began is declared."""
        if self._open is not None and not self._open.settled:
            self._commit(self._open)
        self._await_idle()

    def cancel(self) -> None:
        """Ends a capture at once and waits for devices and thread to let go of slot and state."""
        for task in self._pending():
            if isinstance(task, Flight):
                task.settled = True
                task.copy.give_up()
        self._await_idle()
        self._open = None
        self._unread.clear()

    def close(self) -> None:
        """Ends the thread. Nothing may be in work."""
        if self._thread is not None:
            self._enqueue(None)
            self._thread.join()
            self._thread = None

    def _read_costs(self) -> None:
        while self._unread and (figures := self._unread[0].copy.cost()) is not None:
            flight = self._unread.popleft()
            self._costs.append(Cost(flight.capture.version.number, figures, flight.stall_s is not None))

    def _decide(self, flight: Flight) -> None:
        allowed_s = self._allowance_s()
        stall_s = flight.copy.predict_stall_s()
        if allowed_s is None or stall_s <= allowed_s:
            self._commit(flight)
        else:
            flight.stall_s = stall_s
            flight.reason = (
                f"the optimizer would have waited {stall_s:.4f} s for the copy, {allowed_s:.4f} s are allowed"
            )
            flight.settled = True
            flight.copy.give_up()

    def _commit(self, flight: Flight) -> None:
        flight.settled = True
        try:
            flight.copy.commit()
        except Exception as error:
            traceback.print_exc()
            flight.reason = f"{type(error).__name__}: {error}"
            flight.copy.give_up()

    def _await_idle(self) -> None:
        """First for the devices, inside torch, where a main thread that stands still is found (stuck.py)."""
        for task in self._pending():
            with contextlib.suppress(RuntimeError):  # the thread meets the same error, and says so
                task.await_device()
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks)

    def _pending(self) -> list[Observation | Flight]:
        with self._changed:
            return [task for task in self._tasks if task is not None]

    def _enqueue(self, task: Observation | Flight | None) -> None:
        with self._changed:
            self._tasks.append(task)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="deadpool-capture", daemon=True)
            self._thread.start()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._tasks))
                task = self._tasks[0]
            match task:
                case Observation():
                    self._observe(task)
                case Flight():
                    self._capture(task)
            is_end = task is None
            del task  # or what it copied would be kept until the next one
            with self._changed:
                self._tasks.popleft()
                self._changed.notify_all()
            if is_end:
                return

    def _observe(self, task: Observation) -> None:
        """First the device is seen to be that far, then the abort flag is looked at (by whom this is told)."""
        try:
            task.boundary.wait()
        except Exception as error:
            traceback.print_exc()
            self._on_error(error)
            return
        self._on_observed(task.version)

    def _capture(self, flight: Flight) -> None:
        """A copy that fails is a version this rank missed; training goes on."""
        number = flight.capture.version.number
        try:
            flight.write_record()
            whole = flight.copy.advance(self._pending_injections.capturing(number, lambda: False)) and self._is_one(
                flight
            )
        except Exception as error:
            traceback.print_exc()
            whole, flight.reason = False, f"{type(error).__name__}: {error}"
        if whole:
            self._pending_injections.captured(number)
            self._on_copied(flight.capture, len(flight.record))
        else:
            self._on_given_up(flight.capture, flight.reason, flight.stall_s)

    def _is_one(self, flight: Flight) -> bool:
        """All of it is of the same moment. Once settled, the main thread has looked: an optimizer writes after that."""
        if not flight.settled and not self._state.is_untouched:
            self._at_once = True
            flight.reason, flight.torn = _WRITTEN, True
        return not flight.torn
