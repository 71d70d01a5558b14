"""What NCCL's collectives tell about this rank's device: whether it waits in one of them, and for how long it did so in
past steps.

A host that waits for its device spins: to the kernel it looks as busy as one that computes. And a slow device cannot be
told from one that waits for it by looking at their hosts, which wait in the same calls. On the device itself both show:
a collective that has begun and does not end waits for a peer, and the slowest device is the one whose collectives are
the shortest.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from deadpool.backend import nccl_trace
from deadpool.backend.nccl_trace import EndedCollective
from deadpool.errors import DeviceError
from deadpool.snapshot.cuda import runtime

LOOK_EVERY_S = 1.0
"""Between two looks at a main thread that stands still. A look takes milliseconds."""

MEASURE_EVERY_S = 60.0
"""Between two looks at past steps. A look takes tens of milliseconds, in which the main thread may have to wait."""

STEPS = 20
"""So many past steps are looked at, if the recorder has kept the collectives of so many."""


class Trace(Protocol):
    """`backend.nccl_trace`, or a test's."""

    is_available: Callable[[], bool]
    started: Callable[[], frozenset[int]]
    ended: Callable[[], list[EndedCollective]]


class DeviceMeter:
    """begin_step() is for the main thread, look() for one other thread."""

    def __init__(self, trace: Trace = nccl_trace) -> None:
        self._trace = trace
        self._relaxed_thread = 0  # the one that looks, once it may
        self._place: tuple[int, int] | None = None  # where the main thread is
        self._looked_at = 0.0
        self._started: frozenset[int] = frozenset()
        self._waits = False
        self._begins_ns: deque[int] = deque(maxlen=STEPS + 2)
        self._measured_at: float | None = None
        self.wait_s_per_step: float | None = None
        """In collectives, with the time that they take themselves. None: not known."""

    def begin_step(self) -> None:
        self._begins_ns.append(time.time_ns())

    def look(self, thread: int, now: float) -> bool:
        """Whether the main thread `thread` has stood still for a while, and its device waits in a collective."""
        try:
            return self._can_look() and self._look(thread, now)
        except (RuntimeError, DeviceError):
            return False  # the device is broken: the main thread finds out

    def _look(self, thread: int, now: float) -> bool:
        self._measure(now)
        place = _place_of(thread)
        if place is None or place != self._place:
            self._place, self._looked_at = place, now
            self._started, self._waits = frozenset(), False
        elif now - self._looked_at >= LOOK_EVERY_S:
            before, self._started = self._started, self._trace.started()
            self._looked_at, self._waits = now, bool(before & self._started)
        return self._waits

    def _can_look(self) -> bool:
        if not self._trace.is_available() or not torch.cuda.is_initialized():
            return False
        if self._relaxed_thread != threading.get_ident():
            found = runtime()
            if found is None:
                return False
            found.relax_capture_mode()
            self._relaxed_thread = threading.get_ident()
        return True

    def _measure(self, now: float) -> None:
        if self._measured_at is None:
            self._measured_at = now  # the first steps are no measure
        if now - self._measured_at >= MEASURE_EVERY_S:
            self._measured_at = now
            self.wait_s_per_step = seconds_per_step(self._trace.ended(), list(self._begins_ns))


def seconds_per_step(ended: Sequence[EndedCollective], begins_ns: Sequence[int]) -> float | None:
    """Of the steps that began at these times, the last of which may be under way. Collectives of one group follow each
    other on the device, and those of two may run at once: so the busiest group counts. None: the recorder has not even
    kept those of one whole step."""
    if not ended:
        return None
    # Those of the last two steps may not have ended: the host is at most one step ahead of its device.
    whole = [begin for begin in begins_ns[:-1] if begin >= ended[0].enqueued_ns]
    if len(whole) < 2:
        return None
    by_group: dict[int, float] = defaultdict(float)
    for each in ended:
        if whole[0] <= each.enqueued_ns < whole[-1]:
            by_group[each.group] += each.seconds
    return max(by_group.values(), default=0.0) / (len(whole) - 1)


def _place_of(thread: int) -> tuple[int, int] | None:
    frame = sys._current_frames().get(thread)
    return (id(frame), frame.f_lasti) if frame is not None else None
