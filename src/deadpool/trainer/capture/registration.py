"""Registers slot memory with CUDA, so that copies run in parallel with the script's work and at the link's full speed.

Registering takes tens of milliseconds per GiB, so it runs in separate threads as soon as a segment is attached, while a
newcomer's snapshot is still arriving. Copies also work without it, but slower and not in parallel with the script.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch

from deadpool.errors import DeviceError
from deadpool.host.notes import note
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.copying.cuda import runtime


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
