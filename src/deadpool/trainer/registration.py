"""Slot memory registered with CUDA, so that copies run beside the script's work and at the link's full speed.

Registering takes tens of milliseconds per GiB, so it is done in threads of its own: as soon as a segment is attached,
while a newcomer's snapshot is still on its way. Without it copies work all the same, slower and not beside the script.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch

from deadpool.errors import DeviceError
from deadpool.notes import note
from deadpool.snapshot.arena import Segment
from deadpool.snapshot.cuda import runtime


class Registrar:
    """Segments stay registered as long as they are mapped."""

    def __init__(self, emit: Callable[..., None]) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._device: int | None = None  # None: nothing in this process is on a device
        self._segments: dict[int, Segment] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._has_failed = False

    def enable(self) -> None:
        """There is state on a device: every segment is registered from now on. Main thread, whose device counts."""
        with self._lock:
            self._device = torch.cuda.current_device()
            for number in self._segments:
                self._start(number)

    def add(self, number: int, segment: Segment) -> None:
        with self._lock:
            self._segments[number] = segment
            self._start(number)

    def await_ready(self, number: int) -> None:
        """Until the segment is registered, or will not be."""
        with self._lock:
            thread = self._threads.get(number)
        if thread is not None:
            thread.join()

    def is_ready(self, number: int) -> bool:
        """The segment is registered, or will not be."""
        with self._lock:
            thread = self._threads.get(number)
        return thread is None or not thread.is_alive()

    def remove(self, number: int) -> None:
        """Before the segment is unmapped."""
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
            torch.cuda.set_device(self._device)  # or this thread would wake another one
            found = runtime()
            if found is None:
                raise DeviceError("the CUDA runtime that torch uses was not found in this process")
            found.register(_address(segment), segment.total_bytes)
        except (DeviceError, RuntimeError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Said once: it is the same for all."""
        if not self._has_failed:
            self._has_failed = True
            note(f"slot memory is not registered with CUDA, captures will be slow: {error}")
            self._emit("pinning_failed", reason=str(error))


def _address(segment: Segment) -> int:
    return int(np.frombuffer(segment.view(), np.uint8).ctypes.data)
