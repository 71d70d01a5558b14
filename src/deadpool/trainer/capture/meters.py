"""Measures how much of its steps a rank spends waiting for other ranks, on the host and on its device.

In synchronous training all ranks have the same step time; only the part that a rank does not wait tells how fast it is.
A thread samples the main thread now and then. The main thread counts as waiting if it is inside torch but not in a data
loader, uses no CPU time during the sample, and is asleep according to the system. All other time is the rank's own:
computing, reading, sleeping, waiting for a CPU. A wait that lasts is also told to the agent, and whether it is one for
other ranks or for data: if the job comes to a standstill, that tells the rank that is waited for from those that wait.

A host that waits for its device spins: to the kernel it looks as busy as one that computes. And a slow device cannot be
told from one that waits for it by looking at their hosts, which wait in the same calls. On the device itself both show,
in what NCCL's collectives tell: one that has begun and does not end waits for a peer, and the slowest device is the one
whose collectives are the shortest.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch

from deadpool.backend import nccl_communicators
from deadpool.backend.nccl_communicators import Collective
from deadpool.host.notes import note
from deadpool.protocol.messages import WAITS_FOR_DATA, WAITS_FOR_PEERS
from deadpool.snapshot.copying.cuda import runtime
from deadpool.trainer.recovery.unwinding import is_inside_torch

PERIOD_S = 0.1
"""The mean time between two samples. It varies at random: regular samples would see the same part of each step."""
SAMPLE_S = 0.002
LASTS_S = 1.0
"""A wait is told once it has lasted so long."""

_IDLE_SHARE = 0.1
_DATA = str(Path(torch.__file__).parent / "utils" / "data")

LOOK_EVERY_S = 1.0
"""The time between two looks at a step that lasts. A look takes milliseconds."""

MEASURE_EVERY_S = 60.0
"""The time between two looks at past steps. A look takes tens of milliseconds, in which the main thread may have to
wait.
"""

STEPS = 20
"""The number of past steps that are looked at, if the recorder has kept the collectives of so many."""


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


class Trace(Protocol):
    """`backend.nccl_communicators`, or a test's."""

    def is_available(self) -> bool: ...

    def pending(self, since_ns: int) -> list[Collective]: ...

    def ended(self, since_ns: int) -> list[Collective]: ...


class DeviceMeter:
    """begin_step() and restart() are for the main thread, look() for one other thread."""

    def __init__(self, trace: Trace = nccl_communicators) -> None:
        self._trace = trace
        self._failed = False
        self._relaxed: threading.Thread | None = None  # the thread that looks, once it may
        self._since_ns = 0  # what was enqueued before was aborted
        self._begins_ns: deque[int] = deque(maxlen=STEPS + 2)
        self._looked_at = 0.0
        self._seen: tuple[int, frozenset[int]] | None = None  # when the step began, and what was pending in it
        self._waits = False
        self._measured_at: float | None = None
        self._is_in_use: bool | None = None  # whether NCCL's collectives are; None: not known yet
        self._wait_s_per_step: float | None = None

    def begin_step(self) -> None:
        self._begins_ns.append(time.time_ns())

    def restart(self) -> None:
        """All communicators are new ones: no time before this was that of a step."""
        self._since_ns, self._measured_at, self._wait_s_per_step = time.time_ns(), None, None
        self._begins_ns.clear()

    def wait_s(self, by_host_s: float) -> float | None:
        """How long this rank waits for others in a step: on its device, where there is one, else by its host. None: not
        measured yet. Figures of hosts and of devices must not be compared."""
        if self._is_in_use is None and self._trace.is_available() and torch.cuda.is_initialized():
            return None
        return self._wait_s_per_step if self._is_in_use else by_host_s

    def look(self, now: float) -> bool:
        """Whether nothing has got further for a while, on the host or on the device, and the device is in a
        collective."""
        if self._failed:
            return False
        try:
            return self._can_look() and self._look(now)
        except Exception as error:  # the recorder's format is torch's own affair: training goes on without this
            self._failed, self._is_in_use, self._waits = True, False, False
            note(f"NCCL's flight recorder cannot be read, slow devices will not be found: {error!r}")
            return False

    def _can_look(self) -> bool:
        if not self._trace.is_available() or not torch.cuda.is_initialized():
            return False
        if self._relaxed is not threading.current_thread():
            found = runtime()
            if found is None:
                return False
            found.relax_capture_mode()
            self._relaxed = threading.current_thread()
        return True

    def _look(self, now: float) -> bool:
        self._measure(now)
        if now - self._looked_at < LOOK_EVERY_S or not self._begins_ns:
            return self._waits
        began_ns, self._looked_at = self._begins_ns[-1], now
        if time.time_ns() - began_ns < LOOK_EVERY_S * 1e9:
            self._seen, self._waits = None, False
            return False
        pending = self._trace.pending(self._since_ns)
        seen = (began_ns, frozenset(each.number for each in pending))
        is_in_collective = any(each.has_started and not each.is_pair for each in pending)
        is_in_pair = bool(pending) and all(each.has_started and each.is_pair for each in pending)
        self._waits = seen == self._seen and (is_in_collective or is_in_pair)
        self._seen = seen
        return self._waits

    def _measure(self, now: float) -> None:
        if self._measured_at is None:
            # The first steps are no measure; after that, a first figure comes early.
            self._measured_at = now - MEASURE_EVERY_S + LOOK_EVERY_S * STEPS / 2
        if now - self._measured_at >= MEASURE_EVERY_S:
            self._measured_at = now
            ended = self._trace.ended(self._since_ns)
            self._is_in_use = bool(self._is_in_use or ended)
            self._wait_s_per_step = seconds_per_step(ended, list(self._begins_ns))


def seconds_per_step(ended: Sequence[Collective], begins_ns: Sequence[int]) -> float | None:
    """The median of the steps that began at these times, the last of which may be under way. Collectives of one group
    follow each other on the device, and those of two may run at once: so the busiest group of a step counts. None: the
    recorder has not even kept those of one whole step."""
    if not ended:
        return None
    # Those of the last two steps may not have ended: the host is at most one step ahead of its device.
    whole = [begin for begin in begins_ns[:-1] if begin >= ended[0].enqueued_ns]
    if len(whole) < 2:
        return None
    by_step: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for each in ended:
        step = next((number for number, end in enumerate(whole[1:]) if whole[number] <= each.enqueued_ns < end), None)
        if step is not None:
            by_step[step][each.group] += each.seconds or 0.0
    lasted = [end - begin for begin, end in itertools.pairwise(whole)]
    return statistics.median(
        min(max(by_step[step].values(), default=0.0), length / 1e9) for step, length in enumerate(lasted)
    )
