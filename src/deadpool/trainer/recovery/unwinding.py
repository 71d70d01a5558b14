"""What lies between a lost peer and a main thread at rest.

`was_caused_by_fault`, `await_fence_if_peer_lost` and `await_fence` handle the time between the loss of a peer and
the fence that announces it, on the script's thread.

Two things can go wrong in that time. First, an exception that a broken connection caused may be taken for an error
of the script, or the other way round. They are told apart by whether a connection is broken, since no collective
fails because of a peer while all connections are intact. Second, a script may swallow that exception (`except
Exception: continue`) and end its step as if nothing had happened. Such a step must not count: other ranks that have
completed it would go on from a version that lacks this rank's part.

In both cases this rank waits for the fence, for as long as it takes to detect a dead node. If no fence comes, the
connection has broken between two live processes: no other process will detect that, and the results of the step
cannot be trusted. So this process ends and another one takes its rank, as after any fault.

`UnwindWatchdog` detects a main thread that an abort did not reach, because it is idle inside torch, and ends the
process.

A wait in gloo does not end if a message was cut off in its middle: gloo forgets the buffer of a message that it has
begun to read or write, and tells it nothing when the connection ends (docs/design-notes.md). It would wait until the
group's timeout. No other thread can end that wait, so the process ends itself. No work is lost: its agent starts
another process, which takes the rank from the node's own memory.

Whether the main thread is idle is judged by its CPU time. A rank that computes is left alone, and so is one that
waits for something outside torch, such as its data. With a GPU the host may be two steps ahead: it then waits
legitimately until the device has worked off its queue. Without one, nothing can come any more once every thread
sleeps.

A halt that comes in a step of unusual length ends a hang. Then the stacks of all threads are printed, because the
abort that follows changes them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from deadpool.errors import GroupError, Inexact
from deadpool.host.notes import note
from deadpool.protocol.identity import NO_GENERATION, Generation
from deadpool.trainer.current import CODE_RESTART

if TYPE_CHECKING:
    from deadpool.trainer.job import Job


FENCE_BEATS = 10
"""How many heartbeat intervals to wait for the fence: two node timeouts."""


def was_caused_by_fault(job: Job, error: Exception) -> bool:
    """Whether the abort flag is up. If the loss of a peer may have caused the error, the flag is waited for."""
    session = job.session
    suspected = _may_be_a_peers_doing(job, error)
    return session.core.is_aborted or (suspected and await_fence(job))


def await_fence_if_peer_lost(job: Job) -> None:
    """Called after a step's block and before the step counts: the cause of a swallowed exception shows by then."""
    session = job.session
    if session.groups.has_lost_a_peer() and not session.core.is_aborted and not await_fence(job):
        _end_process(job)


def _may_be_a_peers_doing(job: Job, error: Exception) -> bool:
    groups = job.session.groups
    if isinstance(error, Inexact):
        return False
    if groups.has_lost_a_peer() or isinstance(error, (GroupError, dist.DistError)):  # also errors of the store
        return True
    return not groups.shows_losses and not isinstance(error, StopIteration)  # no collective raises StopIteration


def await_fence(job: Job) -> bool:
    session = job.session
    assert session.settings is not None
    with job.waits.waiting():
        return session.await_halt(FENCE_BEATS * session.settings.heartbeat_s)


def _end_process(job: Job) -> None:
    reason = f"a connection to a peer broke before the end of step {job.number}, and no fault explains it"
    note(f"{reason}: the step does not count, and another process takes this rank")
    job.session.emit("peer_lost", step=job.number, reason=reason)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CODE_RESTART)


STILL_S = 2.0
STILL_STEPS = 3
"""A main thread is stuck after it was idle for STILL_S and for as long as this many steps take."""

ASLEEP_S = 1.0
"""Without a device, it is stuck after all threads of the process were asleep for so long."""

LONG_S = 20.0
LONG_STEPS = 5
"""A step is of unusual length if it has lasted longer than LONG_S and than this many steps."""

_SAMPLE_S = 0.25
_ACTIVE_SHARE = 0.02  # of the time between two samples: a thread that only wakes up to check a flag uses less
_TASKS = Path("/proc/self/task")
_TORCH = str(Path(torch.__file__).parent)
_FILES = (f"{_TORCH}/serialization.py", f"{_TORCH}/distributed/checkpoint/")
_DATA = str(Path(torch.__file__).parent / "utils" / "data")


class UnwindWatchdog:
    """Calls `on_stuck` in a separate thread once the main thread was idle for `limit_s`, with the seconds that it was.
    `stepped` has to be called after every step."""

    def __init__(self, on_stuck: Callable[[float], None]) -> None:
        self._on_stuck = on_stuck
        self._unwound = threading.Event()
        self._rested = NO_GENERATION  # the newest fence at which the main thread has come to rest
        self._lock = threading.Lock()
        self.step_s = 0.0
        self._stepped_at = 0.0

    def stepped(self, step_s: float) -> None:
        self.step_s, self._stepped_at = step_s, time.monotonic()

    def dump_stacks_if_step_is_long(self) -> None:
        """Prints the stacks of all threads to this trainer's log, before the abort lets the threads go on."""
        seconds = time.monotonic() - self._stepped_at
        if self.step_s and seconds > max(LONG_S, LONG_STEPS * self.step_s):
            print(f"deadpool: no step for {seconds:.0f} s; the stacks of all threads:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)

    @property
    def limit_s(self) -> float:
        return max(STILL_S, STILL_STEPS * self.step_s)

    def begin(self, fence: Generation) -> None:
        """Every group was aborted, so the main thread should unwind; it may have come to rest before this call."""
        with self._lock:
            if fence <= self._rested:
                return
            self._unwound.clear()
        threading.Thread(target=self._watch, name="deadpool-unwind-watch", daemon=True).start()

    def end(self, fence: Generation) -> None:
        """The main thread has come to rest."""
        self._stepped_at = time.monotonic()
        with self._lock:
            self._rested = fence
            self._unwound.set()

    def _watch(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        clock = time.pthread_getcpuclockid(main)
        still_s, asleep_s, used_s = 0.0, 0.0, time.clock_gettime(clock)
        while not self._unwound.wait(_SAMPLE_S):
            now_s = time.clock_gettime(clock)
            is_still = now_s - used_s < _ACTIVE_SHARE * _SAMPLE_S and is_inside_torch(main)
            still_s, used_s = (still_s + _SAMPLE_S if is_still else 0.0), now_s
            is_asleep = is_still and not is_in_files(main) and not has_device() and are_others_asleep()
            asleep_s = asleep_s + _SAMPLE_S if is_asleep else 0.0
            if still_s >= self.limit_s or asleep_s >= ASLEEP_S:
                self._on_stuck(still_s)
                return


def has_device() -> bool:
    return torch.accelerator.is_available()


def is_in_files(thread: int) -> bool:
    """Whether it reads or writes a checkpoint: a slow server of files looks like sleep."""
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code.co_filename.startswith(_FILES)


def are_others_asleep() -> bool:
    """Whether no thread of this process but this one runs, waits for a processor, or waits for a disk."""
    own = str(threading.get_native_id())
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            state = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if task.name != own and state != "S":
                return False
    return True


def where_script_stands(thread: int) -> str:
    """The line of the script, or of a library, that has called into torch; "" if there is none."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}, in {frame.f_code.co_name}"


def is_inside_torch(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    name = frame.f_code.co_filename if frame is not None else ""
    return name.startswith(_TORCH) and not name.startswith(_DATA)
