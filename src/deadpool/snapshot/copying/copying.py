"""Copies bulk bytes between live tensors and slots. Owns the lane of each device and the batches planned for each slot.

The main thread opens copies at the boundary, and the copying thread advances them; it opens those that had to wait for
their slots. The main thread reads slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from deadpool.errors import StateError
from deadpool.protocol.seal import Geometry
from deadpool.snapshot.copying.bulk import LiveBulk
from deadpool.snapshot.copying.lanes import CopyLane, HostLane, Mark, MoveBatch
from deadpool.snapshot.copying.moves import Moves, make_moves
from deadpool.snapshot.copying.slot_copy import LaneShare, SlotCopy

STAGING_LIMIT_BYTES = 256 << 20
"""The limit for device memory that small tensors are gathered in; beyond it they are copied one by one."""

MakeLane = Callable[[torch.device], CopyLane]


def make_lane(device: torch.device, aside_limit_bytes: int = 0) -> CopyLane:
    """Makes the lane of a device, which may take so many bytes of its memory to set captures aside."""
    if device.type == "cpu":
        return HostLane()
    if device.type != "cuda":
        raise StateError(f"state on {device} cannot be captured: only cpu and cuda can")
    from deadpool.snapshot.copying.cuda_lane import CudaLane

    return CudaLane(device, STAGING_LIMIT_BYTES, aside_limit_bytes)


class Boundary:
    """A step boundary in the work of all devices."""

    def __init__(self, marks: dict[torch.device, Mark]) -> None:
        self.marks = marks

    def done(self) -> bool:
        return all(mark.done() for mark in self.marks.values())

    def wait(self) -> None:
        for mark in self.marks.values():
            mark.wait()


class BulkCopier:
    """Opens copies of plans into slots. It keeps the batches that it has planned for a slot until release()."""

    def __init__(self, make: MakeLane, devices: Iterable[torch.device]) -> None:
        """`devices` have state from the beginning; others may follow."""
        self._make = make
        self._lanes: dict[torch.device, CopyLane] = {}
        self._bulk: LiveBulk | None = None
        self._planned: dict[tuple[int, Geometry], dict[torch.device, list[MoveBatch]]] = {}  # of that bulk, by slot
        for device in devices:
            if device.type != "meta":  # a parameter there is not materialised yet
                self._lane(device)

    @property
    def device_bytes(self) -> int:
        return sum(lane.device_bytes for lane in self._lanes.values())

    @property
    def has_device(self) -> bool:
        return any(device.type != "cpu" for device in self._lanes)

    def use(self, bulk: LiveBulk) -> None:
        """Has a lane for every device of the bulk, so that the next mark() marks all of them."""
        if bulk is not self._bulk:
            for device in {local.device for local in bulk.locals.values()}:
                self._lane(device)

    def mark(self) -> Boundary:
        """Marks the end of everything enqueued so far, on every device with state. Only the main thread may call it."""
        return Boundary({device: lane.mark() for device, lane in self._lanes.items()})

    def open(self, bulk: LiveBulk, slot: memoryview, geometry: Geometry, start: Boundary) -> SlotCopy:
        """Opens a copy of the bulk's tensors as they are at `start`."""
        batches = self._batches(bulk, slot, geometry)
        return SlotCopy([self._share(device, each, start) for device, each in batches.items()], bulk)

    def load(self, device: torch.device, moves: Moves) -> None:
        """Copies from a slot into live memory. The copy may end only in await_loaded()."""
        self._lane(device).load(moves)

    def await_loaded(self) -> None:
        """Waits until every load so far is complete, and no slot is read any more."""
        self.mark().wait()

    def drain(self) -> None:
        for lane in self._lanes.values():
            lane.drain()

    def release(self) -> None:
        """Drops all references to slots, so that their memory can be unmapped, and to the tensors last captured."""
        self._planned.clear()
        for lane in self._lanes.values():
            lane.release()

    def _lane(self, device: torch.device) -> CopyLane:
        if device not in self._lanes:
            self._lanes[device] = self._make(device)
        return self._lanes[device]

    def _share(self, device: torch.device, batches: list[MoveBatch], start: Boundary) -> LaneShare:
        lane = self._lane(device)
        return LaneShare(lane, batches, lane.open(start.marks[device]))

    def _batches(self, bulk: LiveBulk, slot: memoryview, geometry: Geometry) -> dict[torch.device, list[MoveBatch]]:
        whole = np.frombuffer(slot, np.uint8)
        place = whole.__array_interface__["data"][0], geometry
        if self._bulk is not bulk:
            self.release()
            self._bulk = bulk
        if place not in self._planned:
            moves = make_moves(bulk.layout.entries, bulk.locals, whole, geometry)
            self._planned[place] = {device: self._lane(device).plan(each) for device, each in moves.items()}
        return self._planned[place]
