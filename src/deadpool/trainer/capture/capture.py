"""A thread that observes when the device has reached a version, and copies it into a slot during the next step.

The thread works off two kinds of tasks in order. A version whose work was enqueued is *observed* when the device has
got that far. A capture is advanced until its copy is complete or was given up. The main thread waits for neither. Right
before the optimizer steps, it decides at once whether the copy may go on, by how long the optimizer would have to wait
for it (settle); only the device does that waiting. A copy whose rest was set aside goes on beside the next steps, and
versions that the device reaches meanwhile are observed between its batches.

A version that finds no free slot waits for one in the thread, which then opens the copy itself: a long step after quick
ones is protected too. Before the optimizer steps, the main thread ends that wait.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import torch

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import Version
from deadpool.protocol.trainer_core import Capture
from deadpool.snapshot.arena.slot import clear_seal
from deadpool.snapshot.copying.copying import Boundary
from deadpool.snapshot.copying.cuda import runtime
from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.capture.capture_tasks import CaptureTarget, Cost, LateCapture, Observation, OngoingCapture
from deadpool.trainer.process.injected_fault import InjectionTriggers

_WRITTEN = (
    "parameters or optimizer state were written to before an optimizer stepped, while they were copied: from now on "
    "they are copied at the end of a step, not during the next one"
)
_REMEMBERED_COSTS = 8

_Task = Observation | LateCapture | OngoingCapture


class Capturer:
    """Observes and captures versions. A copy is declared before the thread becomes idle, so that after a wait for an
    idle thread no further message about the copy can come."""

    def __init__(
        self,
        state: ProtectedState,
        pending_injections: InjectionTriggers,
        *,
        allowance_s: Callable[[], float | None],
        on_observed: Callable[[Version], None],
        on_copied: Callable[[Capture, int, Mapping[int, int]], None],
        on_given_up: Callable[[Capture, Miss, str, float | None], None],
        on_error: Callable[[Exception], None],
        on_set_aside: Callable[[Capture, int], None] = lambda capture, nbytes: None,
    ) -> None:
        """`allowance_s` gives how long the next optimizer step may be made to wait; None: without limit."""
        self._on_set_aside = on_set_aside
        self._state, self._pending_injections, self._allowance_s = state, pending_injections, allowance_s
        self._on_observed, self._on_copied = on_observed, on_copied
        self._on_given_up, self._on_error = on_given_up, on_error
        self._tasks: deque[_Task | None] = deque()  # the first is in work; None ends the thread
        self._open: OngoingCapture | None = None
        self._late: LateCapture | None = None  # while it may still begin, only the thread sets `_open`
        self._at_once = False  # the script writes before its optimizer steps, so no copy can be made during a step
        self._unread: deque[OngoingCapture] = deque()  # settled, but the device has not got far enough to tell the cost
        self._costs: deque[Cost] = deque(maxlen=_REMEMBERED_COSTS)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    # --- the main thread ---------------------------------------------------------------------------------------------

    def reached(self, version: Version, boundary: Boundary) -> None:
        """All work that makes `version` is enqueued. If it is done already, `on_observed` is called here."""
        if boundary.done():
            self._on_observed(version)
        else:
            self._enqueue(Observation(version, boundary))

    def begin(self, target: CaptureTarget) -> None:
        """Copies the state that the last record() found. If the copy fails, this rank has missed the version."""
        self.settle()
        self._open = self._opened(target)
        if self._open is not None:
            self._enqueue(self._open)
            if self._is_at_once:
                self._settle(self._open, self._commit)

    def begin_late(self, late: LateCapture) -> None:
        """Begins as begin() does, when a slot is there. A script that writes before its optimizer steps can only be
        copied at once, so there the version is missed."""
        self.settle()
        if self._is_at_once:
            late.leave()
            return
        self._open, self._late = None, late
        self._enqueue(late)

    @property
    def _is_at_once(self) -> bool:
        return self._at_once or self._state.has_uncounted_writes

    def _opened(self, target: CaptureTarget, reached_at: float | None = None) -> OngoingCapture | None:
        """`reached_at` is when the device had reached the version, where its slot came later."""
        try:
            for slot in target.slots:
                clear_seal(slot)
            copy = self._state.open_copy(target.slot, target.geometry)
        except Exception as error:
            traceback.print_exc()
            self._on_given_up(target.capture, Miss.COPY_FAILED, f"{type(error).__name__}: {error}", None)
            return None
        if reached_at is not None:
            copy.began_at(reached_at)
        return OngoingCapture(target, copy, reached_at is not None)

    def _end_waiting(self) -> None:
        """Lets no capture begin any more: one that waited for its slot is open by now, or never will be. It waits only
        for a copy that is being opened, never for a device."""
        late, self._late = self._late, None
        if late is not None and late.leave():
            late.opened.wait()

    def settle(self) -> None:
        """Decides about the copy before the optimizer or the next boundary's clones overwrite the state."""
        self._end_waiting()
        ongoing = self._open
        if ongoing is None:
            return
        if not ongoing.settled:
            self._settle(ongoing, self._decide)
        ongoing.copy.hold()

    def _settle(self, ongoing: OngoingCapture, decide: Callable[[OngoingCapture], None]) -> None:
        """Writes that torch does not count are looked for before the copy is accepted, not after."""
        self._read_costs()  # this copy is predicted to take as long as the last ones
        if self._is_undisturbed:
            decide(ongoing)
        else:
            self._give_up_torn(ongoing)
        self._unread.append(ongoing)

    @property
    def _is_undisturbed(self) -> bool:
        """Whether nothing was written to the state since the boundary, as far as counters and samples tell."""
        return self._state.is_untouched and not self._state.shows_uncounted_write

    def _give_up_torn(self, ongoing: OngoingCapture) -> None:
        self._at_once = True
        ongoing.cause, ongoing.reason = Miss.OVERWRITTEN, _WRITTEN
        ongoing.torn = ongoing.settled = True
        ongoing.copy.give_up()

    def costs(self) -> Iterator[Cost]:
        """Yields the cost of each capture once, as soon as it is known."""
        self._read_costs()
        while self._costs:
            yield self._costs.popleft()

    def finish(self) -> None:
        """Waits until every capture that has begun is declared."""
        self._end_waiting()
        if self._open is not None and not self._open.settled:
            finish = self._commit if self._is_undisturbed else self._give_up_torn
            finish(self._open)
        for task in self._pending():
            if isinstance(task, OngoingCapture):  # what was set aside and is not copied yet
                self._commit(task)
        self._await_idle()

    def cancel(self) -> None:
        """Gives up every capture at once and waits until devices and thread no longer use its slot and the state."""
        self._end_waiting()
        for task in self._pending():
            if isinstance(task, OngoingCapture):
                task.settled = True
                task.copy.give_up()
        self._await_idle()
        self._open = None
        self._unread.clear()

    def close(self) -> None:
        """Ends the thread. No task may be in work."""
        if self._thread is not None:
            self._enqueue(None)
            self._thread.join()
            self._thread = None

    def _read_costs(self) -> None:
        while self._unread and (figures := self._unread[0].copy.cost()) is not None:
            ongoing = self._unread.popleft()
            self._costs.append(Cost(ongoing.capture.version.number, figures, ongoing.given_up))

    def _decide(self, ongoing: OngoingCapture) -> None:
        """Decides between the two ways that make a whole copy: the one counts for which the optimizer waits less."""
        allowed_s = self._allowance_s()
        stall_s = ongoing.copy.predict_stall_s() + sum(each.copy.predict_left_s() for each in self._before(ongoing))
        aside_s = ongoing.copy.predict_aside_s() if stall_s > 0 else None
        settle = self._commit
        if aside_s is not None and aside_s < stall_s:
            stall_s, settle = aside_s, self._set_aside
        if allowed_s is None or stall_s <= allowed_s:
            settle(ongoing)
        else:
            self._give_up_slow(ongoing, stall_s, allowed_s)

    def _give_up_slow(self, ongoing: OngoingCapture, stall_s: float, allowed_s: float) -> None:
        """What a copy would have cost that could not begin in time says nothing about the cost of captures."""
        ongoing.settled = ongoing.given_up = True
        if ongoing.is_late:
            ongoing.cause, ongoing.reason = Miss.NO_SLOT, "no free slot"
        else:
            ongoing.stall_s = stall_s
            ongoing.reason = (
                f"the optimizer would have waited {stall_s:.4f} s for the copy, {allowed_s:.4f} s are allowed"
            )
        ongoing.copy.give_up()

    def _commit(self, ongoing: OngoingCapture) -> None:
        """What was set aside before goes first: two threads must not issue to a lane at once."""
        for earlier in self._before(ongoing):
            self._issue(earlier, earlier.copy.commit)
        self._issue(ongoing, ongoing.copy.commit)

    def _set_aside(self, ongoing: OngoingCapture) -> None:
        for earlier in self._before(ongoing):
            self._issue(earlier, earlier.copy.commit)
        self._issue(ongoing, lambda: self._on_set_aside(ongoing.capture, ongoing.copy.set_aside()))

    def _issue(self, ongoing: OngoingCapture, issue: Callable[[], None]) -> None:
        ongoing.settled = True
        try:
            issue()
        except Exception as error:
            traceback.print_exc()
            ongoing.cause, ongoing.reason = Miss.COPY_FAILED, f"{type(error).__name__}: {error}"
            ongoing.copy.give_up()

    def _before(self, ongoing: OngoingCapture) -> list[OngoingCapture]:
        """Returns the captures whose copies are not complete and came before this one: they were set aside."""
        captures = [task for task in self._pending() if isinstance(task, OngoingCapture)]
        return captures[: captures.index(ongoing)] if ongoing in captures else []

    def _await_idle(self) -> None:
        """Waits first for the devices, inside torch, where unwinding.py finds a main thread that is stuck."""
        for task in self._pending():
            with contextlib.suppress(RuntimeError):  # the thread gets the same error and reports it
                task.await_device()
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks)

    def _pending(self) -> list[_Task]:
        with self._changed:
            return [task for task in self._tasks if task is not None]

    def _enqueue(self, task: _Task | None) -> None:
        with self._changed:
            self._tasks.append(task)
            self._changed.notify_all()
        if self._thread is None:
            device = torch.cuda.current_device() if self._state.is_on_device else None
            self._thread = threading.Thread(target=self._run, args=(device,), name="deadpool-capture", daemon=True)
            self._thread.start()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self, device: int | None) -> None:
        """`device` is the main thread's: this thread would use device 0 otherwise. It may allocate memory while the
        script captures a graph, which would break the graph in the usual mode."""
        if device is not None:
            torch.cuda.set_device(device)
            if (found := runtime()) is not None:
                found.relax_capture_mode()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._tasks))
                task = self._tasks[0]
            match task:
                case Observation():
                    self._observe(task)
                case LateCapture():
                    self._capture_late(task)
                case OngoingCapture():
                    self._capture(task)
            is_end = task is None
            del task  # otherwise its copy would be kept until the next task
            with self._changed:
                self._tasks.popleft()
                self._changed.notify_all()
            if is_end:
                return

    def _observe(self, task: Observation) -> None:
        """Waits until the device has got that far; only then is the abort flag checked (by on_observed)."""
        try:
            task.boundary.wait()
        except Exception as error:
            traceback.print_exc()
            self._on_error(error)
            return
        self._on_observed(task.version)

    def _observe_meanwhile(self) -> bool:
        """Observes versions that the device has reached beside a copy. Returns False: no reason to give the copy up."""
        while (task := self._reached_task()) is not None:
            self._observe(task)
        return False

    def _reached_task(self) -> Observation | None:
        """Takes the oldest observation that waits behind the copy, if the device has come there."""
        with self._changed:
            task = next((each for each in self._tasks if isinstance(each, Observation)), None)
            try:
                if task is not None and not task.boundary.done():
                    return None
            except RuntimeError:
                pass  # of the device: _observe() finds and reports it
            if task is not None:
                self._tasks.remove(task)
            return task

    def _capture_late(self, late: LateCapture) -> None:
        """Opens the copy here, because the main thread may be anywhere in the script."""
        ongoing = None
        try:
            if (target := late.wait()) is not None:
                ongoing = self._opened(target, late.reached_at)
        except Exception as error:
            traceback.print_exc()
            self._on_error(error)  # the main thread raises it
        if ongoing is not None:
            self._open = ongoing
            with self._changed:
                self._tasks[0] = ongoing
        late.opened.set()
        if ongoing is not None:
            self._capture(ongoing)

    def _capture(self, ongoing: OngoingCapture) -> None:
        """If the copy fails, this rank has missed the version, and training goes on."""
        target, number = ongoing.target, ongoing.capture.version.number
        cancelled = self._pending_injections.capturing(number, self._observe_meanwhile)
        try:
            target.write_record()
            complete = ongoing.copy.advance(cancelled) and self._is_consistent(ongoing)
            for place in target.carried if complete else ():
                place.fill(target.slot, target.geometry)
        except Exception as error:
            traceback.print_exc()
            complete = False
            ongoing.cause, ongoing.reason = Miss.COPY_FAILED, f"{type(error).__name__}: {error}"
        if complete:
            self._pending_injections.captured(number)
            carried = {place.rank: len(place.record) for place in target.carried}
            self._on_copied(ongoing.capture, len(target.record), carried)
        else:
            self._on_given_up(ongoing.capture, ongoing.cause, ongoing.reason, ongoing.stall_s)

    def _is_consistent(self, ongoing: OngoingCapture) -> bool:
        """Whether the copy is of one moment. After settle() has checked it, the optimizer may write to the state: what
        is found here counts only if settle() has not come meanwhile."""
        if not ongoing.settled and not self._is_undisturbed and not ongoing.settled:
            self._at_once = True
            ongoing.cause, ongoing.reason, ongoing.torn = Miss.OVERWRITTEN, _WRITTEN, True
        return not ongoing.torn
