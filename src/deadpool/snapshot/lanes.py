"""The ways between live memory and slots: one lane per device, each with marks, trips and a pace of its own.

A mark is a point in a device's work that the host can look at or wait for. A trip is one capture's way over a lane:
batches are issued (by the copying thread or by the main thread, one at a time each), then it is closed; work that is
enqueued after hold() waits for it. HostLane is the twin for memory that the host itself computes on: everything is
complete as soon as it was issued. The lane of a CUDA device is in cuda_lane.py.
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

from deadpool.snapshot.copy_stats import Figures, Pace
from deadpool.snapshot.moves import MOVE_LIMIT_BYTES, Moves, Piece

_TINY_ELEMENTS = 16 << 10
"""Below it torch copies without a thread team, many tensors with one call."""


class Mark(Protocol):
    def done(self) -> bool: ...

    def wait(self) -> None:
        """Blocks without the GIL."""


class Batch(Protocol):
    """Moves that are issued together."""

    @property
    def nbytes(self) -> int: ...


class Trip(Protocol):
    def issue(self, batch: Batch) -> Mark:
        """Enqueue it; the mark is behind it. Not by two threads at once."""

    def close(self) -> Mark:
        """Nothing more will be issued. The mark is behind everything that was."""

    def hold(self) -> None:
        """What the script enqueues from now on waits for the closed trip. Main thread."""

    def waited(self, seconds: float) -> None:
        """So long did the main thread itself wait for the trip, or work for it."""

    def figures(self) -> Figures | None:
        """None while the device is not that far."""


class Lane(Protocol):
    pace: Pace

    @property
    def device_bytes(self) -> int:
        """Device memory it has taken for itself."""

    def mark(self) -> Mark:
        """Behind everything that was enqueued so far. Main thread."""

    def plan(self, moves: Moves) -> list[Batch]:
        """Fixed addresses, to be issued again and again."""

    def open(self, start: Mark) -> Trip:
        """A trip that starts when the device has come to the mark."""

    def ahead_s(self, began: float | None, now: float) -> float:
        """By how much the host is ahead of the device at an optimizer, if the trip began then, or has not yet."""

    def load(self, moves: Moves) -> None:
        """From the slot into live memory; may return before it is done."""

    def drain(self) -> None:
        """Until nothing is in work any more, on no stream."""

    def release(self) -> None:
        """What was planned so far will not be issued again."""


class _Complete:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


COMPLETE: Mark = _Complete()


@dataclass(frozen=True, slots=True, eq=False)
class HostBatch:
    pairs: list[tuple[np.ndarray, np.ndarray]]  # (target, source): by numpy, which starts no thread team
    tiny: tuple[list[Tensor], list[Tensor]]  # (targets, sources): by one call for all
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
        self.pace = Pace()

    def mark(self) -> Mark:
        return COMPLETE

    def plan(self, moves: Moves) -> list[Batch]:
        return list(_host_batches(moves, into_slot=True))

    def open(self, start: Mark) -> Trip:
        return HostTrip(self.pace)

    def ahead_s(self, began: float | None, now: float) -> float:
        return 0.0

    def load(self, moves: Moves) -> None:
        for batch in _host_batches(moves, into_slot=False):
            batch.run()

    def drain(self) -> None:
        return None

    def release(self) -> None:
        return None


class HostTrip:
    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._lock = threading.Lock()
        self._copied_bytes, self._copy_s, self._waited_s = 0, 0.0, 0.0
        self._closed = False

    def issue(self, batch: Batch) -> Mark:
        assert isinstance(batch, HostBatch)
        began = time.monotonic()
        batch.run()
        with self._lock:
            self._copied_bytes += batch.nbytes
            self._copy_s += time.monotonic() - began
        return COMPLETE

    def close(self) -> Mark:
        self._closed = True
        self._pace.note_copy(self._copied_bytes, self._copy_s)
        return COMPLETE

    def hold(self) -> None:
        return None

    def waited(self, seconds: float) -> None:
        self._waited_s += seconds

    def figures(self) -> Figures | None:
        if not self._closed:
            return None
        return Figures(stall_s=self._waited_s, copied_bytes=self._copied_bytes, copy_s=self._copy_s)


def _host_batches(moves: Moves, *, into_slot: bool) -> Iterator[HostBatch]:
    """A batch per large piece, and per run of small ones as far as a piece's size goes."""
    for piece in moves.pieces:
        yield _host_batch([piece], into_slot)
    for run in moves.runs:
        together, size = list[Piece](), 0
        for piece in run.pieces:
            if together and size + piece.nbytes > MOVE_LIMIT_BYTES:
                yield _host_batch(together, into_slot)
                together, size = [], 0
            together.append(piece)
            size += piece.nbytes
        yield _host_batch(together, into_slot)


def _host_batch(pieces: list[Piece], into_slot: bool) -> HostBatch:
    batch = HostBatch([], ([], []), sum(piece.nbytes for piece in pieces))
    for piece in pieces:
        if len(pieces) > 1 and piece.stored.size < _TINY_ELEMENTS:
            stored = torch.from_numpy(piece.stored)
            batch.tiny[0].append(stored if into_slot else piece.live)
            batch.tiny[1].append(piece.live if into_slot else stored)
        else:
            live = piece.live.numpy()
            batch.pairs.append((piece.stored, live) if into_slot else (live, piece.stored))
    return batch
