"""How much of its steps a rank spends waiting for others: a thread looks at the main thread now and then.

In synchronous training the time of a step is everybody's; only what a rank does not wait tells how fast it is. The main
thread waits if it stands inside torch, and not for data, uses no CPU time while it is looked at, and the system has it
asleep. Whatever else holds it up is its own: computing, reading, sleeping, waiting for a processor.

Where that is blind: work on a GPU. The host of a slow device and the host of one that waits for its peers stand in the
same calls. What can be told apart there is a host that is late, since the others wait for their devices (`waiting`).
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
"""Between two looks, on average. By chance: steps are regular, and looks that are would see the same part of each."""
LOOK_S = 0.002
_IDLE_SHARE = 0.1


class WaitMeter:
    """Of the main thread, which is the one that calls everything but `_run`."""

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
        """For what others have to do first: this is known, and need not be sampled."""
        began, in_step, self._in_step = time.monotonic(), self._in_step, False
        try:
            yield
        finally:
            self._in_step = in_step
            self._add(time.monotonic() - began)

    def take(self) -> float:
        """Seconds waited since the last time. Of few steps this is a rough estimate, of many a good one."""
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
        looked = time.monotonic()
        chance = random.Random()  # the global generator is the script's
        while not self._ended.wait(PERIOD_S * chance.uniform(0.5, 1.5)):
            began = time.monotonic()
            if self._in_step and _waits(main) and self._in_step:
                self._add(began - looked)  # as if it had been so since the last look
            looked = began


def _waits(thread: int) -> bool:
    """While we look we do not hold the interpreter's lock, so that a thread which could run does."""
    if not is_inside_torch(thread):
        return False
    clock = time.pthread_getcpuclockid(thread)
    used_s, began = time.clock_gettime(clock), time.monotonic()
    time.sleep(LOOK_S)
    used_s, took_s = time.clock_gettime(clock) - used_s, time.monotonic() - began
    return used_s < _IDLE_SHARE * took_s and _is_main_asleep() and is_inside_torch(thread)


def _is_main_asleep() -> bool:
    """And not waiting for a processor. Where the system does not tell, nobody ever waits, and nobody is called slow."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")  # of the process's first thread
    except OSError:
        return False
    return fields.rpartition(")")[2].split()[0] == "S"
