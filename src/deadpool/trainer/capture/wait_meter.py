"""Measures how much of its steps a rank spends waiting for other ranks: a thread samples the main thread now and then.

In synchronous training all ranks have the same step time; only the part that a rank does not wait tells how fast it is.
The main thread counts as waiting if it is inside torch but not in a data loader, uses no CPU time during the sample,
and is asleep according to the system. All other time is the rank's own: computing, reading, sleeping, waiting for a
CPU.

A wait that lasts is also told to the agent, and whether it is one for other ranks or for data: if the job comes to a
standstill, that tells the rank that is waited for from those that wait.

Hosts of slow GPUs and of GPUs that wait for them wait in the same calls: what NCCL tells of the devices is asked there
(device_meter.py).
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import torch

from deadpool.protocol.messages import WAITS_FOR_DATA, WAITS_FOR_PEERS
from deadpool.trainer.capture.device_meter import DeviceMeter
from deadpool.trainer.recovery.unwinding import is_inside_torch

PERIOD_S = 0.1
"""The mean time between two samples. It varies at random: regular samples would see the same part of each step."""
SAMPLE_S = 0.002
LASTS_S = 1.0
"""A wait is told once it has lasted so long."""

_IDLE_SHARE = 0.1
_DATA = str(Path(torch.__file__).parent / "utils" / "data")


class WaitMeter:
    """Measures the main thread, which calls all methods but `_run`. `tell` is called with what a wait is for, from the
    measuring thread: once it has lasted, and with "" when it is over."""

    def __init__(self, tell: Callable[[str], None] = lambda what: None) -> None:
        self._long_wait = _LongWait(tell)
        self._device = DeviceMeter()
        self._in_known_wait = False
        self._lock = threading.Lock()
        self._waited_s = 0.0
        self._in_step = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin_step(self) -> None:
        self._in_step = True
        self._device.begin_step()
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
        self._in_known_wait = True
        try:
            yield
        finally:
            self._in_step, self._in_known_wait = in_step, False
            self._add(time.monotonic() - began)

    def take(self) -> float | None:
        """The seconds waited since the last call, once per step: a rough estimate over few steps, a good one over
        many. None: not measured yet."""
        with self._lock:
            waited_s, self._waited_s = self._waited_s, 0.0
        return self._device.wait_s(waited_s)

    def restart(self) -> None:
        """The process groups were built anew."""
        self._device.restart()

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
            waits = _waits(main) or self._device.look(began)
            if self._in_step and waits:
                self._add(began - sampled)  # counts for all of the time since the last sample
            what = WAITS_FOR_PEERS if waits or self._in_known_wait else WAITS_FOR_DATA if _reads(main) else ""
            self._long_wait.on_sample(what, began)
            sampled = began


class _LongWait:
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._told = tell, ""
        self._what, self._since = "", 0.0

    def on_sample(self, what: str, now: float) -> None:
        if what != self._what:
            self._what, self._since = what, now
        if self._told != what and (not what or now - self._since >= LASTS_S):
            self._told = what
            self._tell(what)


def _reads(thread: int) -> bool:
    """Whether it waits in one of torch's data loaders, or in what they call."""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_DATA):
            return _is_main_asleep()
        frame = frame.f_back
    return False


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
