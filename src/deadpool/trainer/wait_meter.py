"""Measures how much of its steps a rank spends waiting for other ranks: a thread samples the main thread now and then.

In synchronous training all ranks have the same step time; only the part that a rank does not wait tells how fast it is.
The main thread counts as waiting if it is inside torch but not in a data loader, uses no CPU time during the sample,
and is asleep according to the system. All other time is the rank's own: computing, reading, sleeping, waiting for a
CPU.

This cannot tell apart a slow GPU and a GPU that waits for its peers, because their hosts wait in the same calls. It
does show a host that is late, since the other hosts then wait for their devices (`waiting`).
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from deadpool.trainer.unwind_watchdog import is_inside_torch

PERIOD_S = 0.1
"""The mean time between two samples. It varies at random: regular samples would see the same part of each step."""
SAMPLE_S = 0.002
_IDLE_SHARE = 0.1


class WaitMeter:
    """Measures the main thread, which calls all methods but `_run`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waited_s = 0.0
        self._in_step = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin_step(self) -> None:
        self._in_step = True
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._run, name="deadpool-waits", daemon=True)
            self._thread.start()

    def end_step(self) -> None:
        self._in_step = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Marks a known wait for other ranks, which is measured and not sampled."""
        began, in_step, self._in_step = time.monotonic(), self._in_step, False
        try:
            yield
        finally:
            self._in_step = in_step
            self._add(time.monotonic() - began)

    def take(self) -> float:
        """The seconds waited since the last call: a rough estimate over few steps, a good one over many."""
        with self._lock:
            waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _add(self, seconds: float) -> None:
        with self._lock:
            self._waited_s += seconds

    def _run(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        sampled = time.monotonic()
        chance = random.Random()  # the global generator belongs to the script
        while not self._ended.wait(PERIOD_S * chance.uniform(0.5, 1.5)):
            began = time.monotonic()
            if self._in_step and _waits(main) and self._in_step:
                self._add(began - sampled)  # counts for all of the time since the last sample
            sampled = began


def _waits(thread: int) -> bool:
    """Sleeps during the sample, which releases the interpreter's lock, so that a thread that can run does run."""
    if not is_inside_torch(thread):
        return False
    clock = time.pthread_getcpuclockid(thread)
    used_s, began = time.clock_gettime(clock), time.monotonic()
    time.sleep(SAMPLE_S)
    used_s, took_s = time.clock_gettime(clock) - used_s, time.monotonic() - began
    return used_s < _IDLE_SHARE * took_s and _is_main_asleep() and is_inside_torch(thread)


def _is_main_asleep() -> bool:
    """Whether the main thread sleeps and is not waiting for a CPU. Without /proc no wait is ever found, so no rank
    counts as slow."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")  # of the process's first thread
    except OSError:
        return False
    return fields.rpartition(")")[2].split()[0] == "S"
