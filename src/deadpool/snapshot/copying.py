"""Moves bulk bytes between live tensors and slots. The trainer's copying thread writes slots, its main thread reads.

Host tensors are copied by numpy, which gives up the GIL and, unlike torch, starts no thread team of its own in the
copying thread. Device tensors go over a side stream that waits for the stream the optimizer ran on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deadpool.protocol.seal import Geometry
from deadpool.snapshot.bulk import Plan
from deadpool.snapshot.layout import Entry
from deadpool.snapshot.tensors import integer_view

Array = np.ndarray[Any, Any]

_PIECE_BYTES = 64 << 20
"""Larger tensors are copied in pieces: between two of them a capture can be given up."""
_IN_FLIGHT_BYTES = 256 << 20
"""On a device, how much is enqueued before the host waits, and so looks whether to go on."""


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """All copies of one plan into one slot: (target, source) pairs of equal shape and item size."""

    plan: Plan
    on_host: list[tuple[Array, Array]]
    on_device: list[tuple[Tensor, Tensor]]


class BulkCopier:
    """Copies plans into slots. The windows it makes into a slot are kept until release()."""

    def __init__(self) -> None:
        self._moves: dict[tuple[int, Geometry], Moves] = {}
        self._boundary: dict[torch.device, torch.cuda.Event] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def mark_boundary(self, plan: Plan) -> None:
        """Remember what has been enqueued so far, optimizer step included. Main thread."""
        for device in plan.cuda_devices:
            if device not in self._boundary:
                self._boundary[device] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event = self._boundary[device]
            event.record(torch.cuda.current_stream(device))

    def copy(self, plan: Plan, slot: memoryview, geometry: Geometry, cancelled: Callable[[], bool]) -> bool:
        """Fill the slot's bulk regions. False if given up. Any one thread at a time."""
        moves = self._moves_into(plan, slot, geometry)
        for target, source in moves.on_host:
            if cancelled():
                return False
            np.copyto(target, source)
        return self._copy_from_devices(moves.on_device, cancelled)

    def release(self) -> None:
        """Let go of all slots, so that their memory can be unmapped."""
        self._moves.clear()

    def _moves_into(self, plan: Plan, slot: memoryview, geometry: Geometry) -> Moves:
        whole = np.frombuffer(slot, np.uint8)
        place = whole.__array_interface__["data"][0], geometry
        moves = self._moves.get(place)
        if moves is None or moves.plan is not plan:
            moves = self._moves[place] = _make_moves(plan, whole, geometry)
        return moves

    def _copy_from_devices(self, moves: list[tuple[Tensor, Tensor]], cancelled: Callable[[], bool]) -> bool:
        for device in sorted({source.device for _, source in moves}, key=str):
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream = self._streams[device]
            stream.wait_event(self._boundary[device])
            of_device = [(target, source) for target, source in moves if source.device == device]
            if not _copy_over(stream, of_device, cancelled):
                return False
        return True


def _copy_over(stream: torch.cuda.Stream, moves: list[tuple[Tensor, Tensor]], cancelled: Callable[[], bool]) -> bool:
    """Returns only when nothing is in flight any more, given up or not: the slot's writer has then ended (rule 11)."""
    in_flight_bytes, given_up = 0, False
    with torch.cuda.stream(stream), torch.no_grad():
        for target, source in moves:
            given_up = cancelled()
            if given_up:
                break
            target.copy_(source, non_blocking=True)
            in_flight_bytes += target.nbytes
            if in_flight_bytes >= _IN_FLIGHT_BYTES:
                stream.synchronize()
                in_flight_bytes = 0
    stream.synchronize()
    return not given_up


def _make_moves(plan: Plan, whole: Array, geometry: Geometry) -> Moves:
    moves = Moves(plan, [], [])
    for entry in plan.layout.entries:
        if entry.nbytes == 0:
            continue
        source = integer_view(plan.locals[entry.key])
        for target_piece, source_piece in _pieces(window(whole, geometry, entry), source):
            if source_piece.device.type == "cpu":
                moves.on_host.append((target_piece, source_piece.numpy()))
            else:
                moves.on_device.append((torch.from_numpy(target_piece), source_piece))
    return moves


def _pieces(target: Array, source: Tensor) -> Iterator[tuple[Array, Tensor]]:
    if target.nbytes <= _PIECE_BYTES or not source.is_contiguous():
        yield target, source
        return
    flat_target, flat_source, count = target.reshape(-1), source.view(-1), _PIECE_BYTES // target.itemsize
    for start in range(0, target.size, count):
        yield flat_target[start : start + count], flat_source[start : start + count]


def window(whole: Array, geometry: Geometry, entry: Entry) -> Array:
    """An entry's place in a slot, as integers of its item size."""
    start = geometry.offset(entry.region) + entry.offset
    integers = np.dtype(f"i{entry.dtype.itemsize}") if entry.dtype.itemsize < 16 else np.dtype("c16")
    return whole[start : start + entry.nbytes].view(integers).reshape(entry.shape)


def read_into(local: Tensor, stored: Array) -> None:
    """Overwrite a live tensor's memory with what a slot holds."""
    if local.numel() == 0:
        return
    target = integer_view(local)
    if local.device.type == "cpu":
        np.copyto(target.numpy(), stored, casting="unsafe")
    else:
        target.copy_(torch.from_numpy(stored))


def announce_write(tensors: Iterable[Tensor]) -> None:
    """Tell torch: caches of derived values (fp8 weights, parametrisations) go by a tensor's version counter."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
