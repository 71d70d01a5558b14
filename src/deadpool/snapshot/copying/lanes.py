"""Copies between the memory of one device and slots: a CopyLane belongs to a device, a LaneCopy to one capture on it.

A mark is a point in a device's work that the host can query or wait for. The copying thread or the main thread issues
the batches of a LaneCopy, one batch at a time, and then closes it; work that the script enqueues after hold() waits for
it. HostLane is the twin for memory that the host itself computes on: there every batch is complete as soon as it was
issued. The lane of a CUDA device is in cuda_lane.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from deadpool.snapshot.copying.copy_stats import CaptureCost, CopyStats
from deadpool.snapshot.copying.moves import MOVE_BYTES, Move, Moves
from deadpool.snapshot.record.tensors import array_over

_TINY_ELEMENTS = 16 << 10
"""Below this size torch copies without a team of threads, so one call may copy many tensors."""


class Mark(Protocol):
    def done(self) -> bool: ...

    def wait(self) -> None:
        """Blocks without the GIL."""


class MoveBatch(Protocol):
    """Moves that are issued together."""

    @property
    def nbytes(self) -> int: ...


class LaneCopy(Protocol):
    def issue(self, batch: MoveBatch) -> Mark:
        """Enqueues a batch and returns a mark behind it. Two threads must not call it at once."""

    def set_aside(self, batches: list[MoveBatch]) -> list[MoveBatch]:
        """Clones what these batches would copy, on the device: after everything that was issued, and before everything
        that the script enqueues from now on. Returns batches that copy the clones. Only the main thread may call it,
        once, and only for as many bytes as the lane has room for."""

    def close(self) -> Mark:
        """Ends the copy and returns a mark behind everything that was issued. Nothing may be issued after it."""

    def hold(self) -> None:
        """Makes what the script enqueues from now on wait for the closed copy. Only the main thread may call it."""

    def waited(self, seconds: float) -> None:
        """Records how long the main thread itself waited for the copy, or worked for it."""

    def cost(self) -> CaptureCost | None:
        """Returns what the copy cost, or None as long as the device has not finished it."""


class CopyLane(Protocol):
    stats: CopyStats

    @property
    def device_bytes(self) -> int:
        """Returns how much device memory the lane takes for itself."""

    def mark(self) -> Mark:
        """Returns a mark behind everything that was enqueued so far. Only the main thread may call it."""

    def plan(self, moves: Moves) -> list[MoveBatch]:
        """Returns batches with fixed addresses, which can be issued again and again."""

    def open(self, start: Mark) -> LaneCopy:
        """Opens a copy that starts when the device has reached the mark."""

    def ahead_s(self, began: float | None, now: float) -> float:
        """Predicts how far the host is ahead of the device at the optimizer, for a copy that began at `began`, or that
        has not begun."""

    def aside_room(self) -> int:
        """Returns how many bytes a copy could set aside now; 0: none, or what another one set aside is still copied."""

    def clone_s(self, nbytes: int) -> float:
        """Predicts how long the device needs to set so many bytes aside."""

    def load(self, moves: Moves) -> None:
        """Copies from the slot into live memory. It may return before the copy is complete."""

    def drain(self) -> None:
        """Waits until no stream has work any more."""

    def release(self) -> None:
        """Drops what was planned so far: it will not be issued again."""


class _Complete:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


COMPLETE: Mark = _Complete()


@dataclass(frozen=True, slots=True, eq=False)
class HostBatch:
    pairs: list[tuple[np.ndarray, np.ndarray]]  # (target, source), copied by numpy, which starts no team of threads
    tiny: tuple[list[Tensor], list[Tensor]]  # (targets, sources), copied by one call
    nbytes: int

    def run(self) -> None:
        for target, source in self.pairs:
            np.copyto(target, source)
        if self.tiny[0]:
            with torch.no_grad():
                torch._foreach_copy_(*self.tiny)


class HostLane:
    device_bytes = 0

    def __init__(self) -> None:
        self.stats = CopyStats()

    def mark(self) -> Mark:
        return COMPLETE

    def plan(self, moves: Moves) -> list[MoveBatch]:
        return list(_host_batches(moves, into_slot=True))

    def open(self, start: Mark) -> LaneCopy:
        return HostLaneCopy(self.stats)

    def ahead_s(self, began: float | None, now: float) -> float:
        return 0.0

    def aside_room(self) -> int:
        """Has no room: to clone host memory takes as long as to copy it into the slot, so nothing would be won."""
        return 0

    def clone_s(self, nbytes: int) -> float:
        return self.stats.copy_s(nbytes)

    def load(self, moves: Moves) -> None:
        for batch in _host_batches(moves, into_slot=False):
            batch.run()

    def drain(self) -> None:
        return None

    def release(self) -> None:
        return None


class HostLaneCopy:
    def __init__(self, stats: CopyStats) -> None:
        self._stats = stats
        self._lock = threading.Lock()
        self._copied_bytes, self._copy_s, self._waited_s = 0, 0.0, 0.0
        self._closed = False

    def issue(self, batch: MoveBatch) -> Mark:
        assert isinstance(batch, HostBatch)
        began = time.monotonic()
        batch.run()
        with self._lock:
            self._copied_bytes += batch.nbytes
            self._copy_s += time.monotonic() - began
        return COMPLETE

    def set_aside(self, batches: list[MoveBatch]) -> list[MoveBatch]:
        raise AssertionError("aside_room() of host memory is 0: nothing may be set aside")

    def close(self) -> Mark:
        self._closed = True
        self._stats.note_copy(self._copied_bytes, self._copy_s)
        return COMPLETE

    def hold(self) -> None:
        return None

    def waited(self, seconds: float) -> None:
        self._waited_s += seconds

    def cost(self) -> CaptureCost | None:
        if not self._closed:
            return None
        return CaptureCost(stall_s=self._waited_s, copied_bytes=self._copied_bytes, copy_s=self._copy_s)


def _host_batches(moves: Moves, *, into_slot: bool) -> Iterator[HostBatch]:
    """Yields a batch for each large move, and batches of up to its size for each run of small tensors."""
    for move in moves.single:
        yield _host_batch([move], into_slot)
    for run in moves.runs:
        together, size = list[Move](), 0
        for move in run.moves:
            if together and size + move.nbytes > MOVE_BYTES:
                yield _host_batch(together, into_slot)
                together, size = [], 0
            together.append(move)
            size += move.nbytes
        yield _host_batch(together, into_slot)


def _host_batch(moves: list[Move], into_slot: bool) -> HostBatch:
    batch = HostBatch([], ([], []), sum(move.nbytes for move in moves))
    for move in moves:
        if len(moves) > 1 and move.stored.size < _TINY_ELEMENTS:
            stored = torch.from_numpy(move.stored)
            batch.tiny[0].append(stored if into_slot else move.live)
            batch.tiny[1].append(move.live if into_slot else stored)
        else:
            live = array_over(move.live)
            batch.pairs.append((move.stored, live) if into_slot else (live, move.stored))
    return batch
