"""Slots that are large enough, and registered with CUDA.

`ensure` asks the agent for larger slots when the state of this rank has outgrown them.

`Registrar` registers slot memory with CUDA, so that copies run in parallel with the script's work and at the link's
full speed.

Registering takes tens of milliseconds per GiB, so it runs in separate threads as soon as a segment is attached,
while a newcomer's snapshot is still arriving. Copies also work without it, but slower and not in parallel with the
script.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from deadpool.errors import DeviceError
from deadpool.host.notes import note
from deadpool.protocol.messages import Declare
from deadpool.protocol.seal import Extent, Geometry
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.copying.cuda import runtime

if TYPE_CHECKING:
    from deadpool.trainer.job import Job


SLOT_WAIT_S = 30.0
"""Limit for the wait for larger slots: before the first step, and after it, when the state of an optimizer such as Adam
has appeared."""


def ensure(job: Job) -> None:
    """Waits until slots have room for the state: that happens twice in a job."""
    session, state = job.session, job.state
    longest = max(job.records, key=len)
    if _fits(state.extent(longest), session.core.geometry):
        return
    needed = state.measure()
    job.capturer.finish()  # what is in flight is declared before its slot is given back
    with session.changed:
        session.core.declare(needed)
    session.send(Declare(geometry=needed, peers=state.peers))
    began = time.monotonic()
    session.wait(lambda: session.core.has_slots or session.core.is_aborted or None, timeout_s=SLOT_WAIT_S)
    session.emit(
        "slots_allocated",
        bytes=needed.slot_bytes,
        device_bytes=state.device_bytes,
        waited_s=time.monotonic() - began,
    )


def _fits(extent: Extent, room: Geometry | None) -> bool:
    if room is None:
        return False
    same_bulk = (extent.unique_bytes, extent.replica_bytes) == (room.unique_bytes, room.replica_bytes)
    return same_bulk and extent.record_bytes <= room.record_capacity


class Registrar:
    """Keeps segments registered for as long as they are mapped."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._device: int | None = None  # None: this process has no state on a device
        self._segments: dict[int, Segment] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._has_failed = False

    def enable(self) -> None:
        """Registers every segment from now on, because there is state on a device. Main thread: its device is used."""
        with self._lock:
            self._device = torch.cuda.current_device()
            for number in self._segments:
                self._start(number)

    def add(self, number: int, segment: Segment) -> None:
        with self._lock:
            self._segments[number] = segment
            self._start(number)

    def await_ready(self, number: int) -> None:
        """Waits until the segment is registered, or registering it has failed."""
        with self._lock:
            thread = self._threads.get(number)
        if thread is not None:
            thread.join()

    def is_ready(self, number: int) -> bool:
        """Whether the segment is registered, or registering it has failed."""
        with self._lock:
            thread = self._threads.get(number)
        return thread is None or not thread.is_alive()

    def remove(self, number: int) -> None:
        """Unregisters the segment. Has to be called before it is unmapped."""
        self.await_ready(number)
        with self._lock:
            segment, registered = self._segments.pop(number, None), self._threads.pop(number, None)
        found = runtime() if registered is not None else None
        if segment is not None and found is not None:
            try:
                found.unregister(_address(segment))
            except DeviceError as error:
                self._fail(error)

    def _start(self, number: int) -> None:
        if self._device is None or number in self._threads:
            return
        segment = self._segments[number]
        thread = threading.Thread(target=self._register, args=(segment,), name="deadpool-register", daemon=True)
        self._threads[number] = thread
        thread.start()

    def _register(self, segment: Segment) -> None:
        assert self._device is not None
        try:
            torch.cuda.set_device(self._device)  # otherwise this thread would initialise device 0 too
            found = runtime()
            if found is None:
                raise DeviceError("the CUDA runtime that torch uses was not found in this process")
            found.register(_address(segment), segment.total_bytes)
        except (DeviceError, RuntimeError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Reports the first failure only: the reason is the same for all segments."""
        if not self._has_failed:
            self._has_failed = True
            note(f"slot memory is not registered with CUDA, captures will be slow: {error}")
            self._emit("pinning_failed", reason=str(error))


def _address(segment: Segment) -> int:
    return int(np.frombuffer(segment.view(), np.uint8).ctypes.data)
