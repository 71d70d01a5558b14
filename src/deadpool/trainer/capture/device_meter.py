"""What NCCL's collectives tell about this rank's device: whether it waits in one of them, and for how long it did so in
past steps.

A host that waits for its device spins: to the kernel it looks as busy as one that computes. And a slow device cannot be
told from one that waits for it by looking at their hosts, which wait in the same calls. On the device itself both show:
a collective that has begun and does not end waits for a peer, and the slowest device is the one whose collectives are
the shortest.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Protocol

import torch

from deadpool.backend.nccl import trace as nccl_trace
from deadpool.backend.nccl.trace import Collective
from deadpool.host.notes import note
from deadpool.snapshot.copying.cuda import runtime

LOOK_EVERY_S = 1.0
"""The time between two looks at a step that lasts. A look takes milliseconds."""

MEASURE_EVERY_S = 60.0
"""The time between two looks at past steps. A look takes tens of milliseconds, in which the main thread may have to
wait.
"""

STEPS = 20
"""The number of past steps that are looked at, if the recorder has kept the collectives of so many."""


class Trace(Protocol):
    """`backend.nccl_trace`, or a test's."""

    def is_available(self) -> bool: ...

    def pending(self, since_ns: int) -> list[Collective]: ...

    def ended(self, since_ns: int) -> list[Collective]: ...


class DeviceMeter:
    """begin_step() and restart() are for the main thread, look() for one other thread."""

    def __init__(self, trace: Trace = nccl_trace) -> None:
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
