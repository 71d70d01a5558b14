"""A main thread that an abort did not reach: found by its standing still inside torch, and ended with its process.

Once in some hundred aborts a wait for gloo does not end although every connection of the process is gone; it would last
until the group's timeout. Nobody can end it from outside, so the process ends itself. No work is lost: its agent starts
another, which takes the rank from the node's own memory.

Standing still is judged by the main thread's CPU time. A rank that computes goes on; one that waits for something else
than torch, such as its data, is left alone.

On a GPU the host may be ahead by two steps: it may wait, rightly, while the device comes to the end of what is queued.

A halt that comes in a step that lasts unusually long is a hang's end: then every thread says where it stands, which
nobody could tell afterwards.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from deadpool.protocol.identity import NO_GENERATION, Generation

STILL_S = 2.0
STILL_STEPS = 3
"""No main thread is stuck before it has stood still for STILL_S and for as long as so many steps take."""

LONG_S = 20.0
LONG_STEPS = 5
"""A step that has lasted longer than both is unusual."""

_LOOK_S = 0.25
_ACTIVE_SHARE = 0.02  # of the time between two looks; waking up to look at a flag costs less
_TORCH = str(Path(torch.__file__).parent)
_DATA = str(Path(torch.__file__).parent / "utils" / "data")


class UnwindWatch:
    """`on_stuck` is called in a thread of its own, once the main thread has stood still for `limit_s`; it is told how
    long that was. `stepped` is told of every step."""

    def __init__(self, on_stuck: Callable[[float], None]) -> None:
        self._on_stuck = on_stuck
        self._unwound = threading.Event()
        self._rested = NO_GENERATION  # the newest fence that the main thread has come to rest for
        self._lock = threading.Lock()
        self.step_s = 0.0
        self._stepped_at = 0.0

    def stepped(self, step_s: float) -> None:
        self.step_s, self._stepped_at = step_s, time.monotonic()

    def tell_where_if_long(self) -> None:
        """Into this trainer's log, and at once: what follows, an abort, lets everybody go on."""
        seconds = time.monotonic() - self._stepped_at
        if self.step_s and seconds > max(LONG_S, LONG_STEPS * self.step_s):
            print(f"deadpool: no step for {seconds:.0f} s; this is where its threads are", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)

    @property
    def limit_s(self) -> float:
        return max(STILL_S, STILL_STEPS * self.step_s)

    def begin(self, fence: Generation) -> None:
        """Every group was aborted; the main thread should be on its way, or may have been quicker than this thread."""
        with self._lock:
            if fence <= self._rested:
                return
            self._unwound.clear()
        threading.Thread(target=self._look, name="deadpool-unwind-watch", daemon=True).start()

    def end(self, fence: Generation) -> None:
        """It has come back."""
        self._stepped_at = time.monotonic()
        with self._lock:
            self._rested = fence
            self._unwound.set()

    def _look(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        clock = time.pthread_getcpuclockid(main)
        still_s, used_s = 0.0, time.clock_gettime(clock)
        while not self._unwound.wait(_LOOK_S):
            now_s = time.clock_gettime(clock)
            is_still = now_s - used_s < _ACTIVE_SHARE * _LOOK_S and is_inside_torch(main)
            still_s, used_s = (still_s + _LOOK_S if is_still else 0.0), now_s
            if still_s >= self.limit_s:
                self._on_stuck(still_s)
                return


def is_inside_torch(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    name = frame.f_code.co_filename if frame is not None else ""
    return name.startswith(_TORCH) and not name.startswith(_DATA)
