"""One rank's protected training state: captured into slots, restored from them. What pool.protect() makes.

record(), measure(), restore() and restore_record() belong to the main thread, between steps. copy_bulk() may run in
another thread until the optimizer steps again; it uses the tensors that the last record() found. One capture at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xxhash
from torch import nn
from torch.optim import Optimizer

from deadpool.errors import StateError
from deadpool.protocol.seal import Extent, Geometry
from deadpool.snapshot.bulk import BulkScanner, Plan
from deadpool.snapshot.copying import BulkCopier
from deadpool.snapshot.host import HostState
from deadpool.snapshot.layout import decode_layout, join_record, split_record
from deadpool.snapshot.objects import describe, sort_objects
from deadpool.snapshot.rebuild import require_complete, restore_bulk
from deadpool.snapshot.replicas import choose_peers
from deadpool.snapshot.tensors import to_bytes

_SMALLEST_RECORD_CAPACITY = 256 << 10
_RECORD_HEADROOM = 4


class ProtectedState:
    """The objects of one rank, as bulk and boundary record."""

    def __init__(
        self,
        objects: Mapping[str, object],
        *,
        replicas: Mapping[int, tuple[int, ...]],
        rank: int,
        node_of: Callable[[int], int],
        companions: Mapping[str, Any] | None = None,
    ) -> None:
        """`companions` have a state that travels with the objects' own, under names that no keyword can have."""
        self._objects = sort_objects(objects)
        self._objects.stateful.update(companions or {})
        self._peers, in_replica_region = choose_peers(
            self._objects.params.values(), replicas, rank=rank, node_of=node_of
        )
        self._scanner = BulkScanner(self._objects, in_replica_region)
        self._host = HostState(self._objects)
        self._copier = BulkCopier()
        self._plan: Plan | None = None
        self._record_capacity = 0

    @property
    def peers(self) -> tuple[int, ...]:
        """Ranks with an identical replica region, own one included; () if there are none on another node."""
        return self._peers

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        return tuple(self._objects.modules.values())

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        return tuple(optimizer.outer for optimizer in self._objects.optimizers.values())

    def measure(self) -> Geometry:
        """The slot this state needs now. Optimizer state makes it grow; the record's room stays while it fits."""
        self._host.refresh()
        extent = self.extent(self.record())
        if extent.record_bytes > self._record_capacity:
            wanted = _power_of_two(extent.record_bytes * _RECORD_HEADROOM)
            self._record_capacity = max(_SMALLEST_RECORD_CAPACITY, wanted)
        return Geometry(
            record_capacity=self._record_capacity,
            unique_bytes=extent.unique_bytes,
            replica_bytes=extent.replica_bytes,
        )

    def record(self) -> bytes:
        """The boundary record of this moment, and the start of a capture: copy_bulk() copies what was found here."""
        plan = self._plan = self._scanner.scan()
        self._copier.mark_boundary(plan)
        return join_record(plan.encoded_layout, self._host.capture())

    def extent(self, record: bytes) -> Extent:
        """How much of a slot the capture that began with this record fills."""
        layout = self._capture_plan().layout
        return Extent(
            record_bytes=len(record),
            unique_bytes=layout.region_bytes("unique"),
            replica_bytes=layout.region_bytes("replica"),
        )

    def copy_bulk(self, slot: memoryview, geometry: Geometry, *, cancelled: Callable[[], bool]) -> bool:
        """Copy the bulk into the slot; False if given up. Any thread. ArenaError if the slot is too small."""
        plan = self._capture_plan()
        geometry.check(self.extent(b""))
        return self._copier.copy(plan, slot, geometry, cancelled)

    def restore(self, slot: memoryview, geometry: Geometry, extent: Extent) -> None:
        """Make the live objects what the slot holds. StateError, and nothing changed, if it is of other objects."""
        start = geometry.offset("record")
        encoded_layout, host = split_record(bytes(slot[start : start + extent.record_bytes]))
        layout = decode_layout(encoded_layout)
        require_complete(layout, extent)
        self._host.require_same_objects(host)
        restore_bulk(self._objects, layout, np.frombuffer(slot, np.uint8), geometry)
        self._host.restore(host)

    def restore_record(self, record: bytes) -> None:
        """The host part only: for a rank that stands clean at the version and keeps its device memory."""
        _, host = split_record(record)
        self._host.restore(host)

    def release_slots(self) -> None:
        """Let go of all slot memory seen so far. No copy may be running."""
        self._copier.release()

    def digest(self) -> str:
        """Checksum of parameters, buffers and optimizer state: equal if and only if they are."""
        hasher = xxhash.xxh3_128()
        plan = self._scanner.scan()
        for item in plan.live:
            local = plan.locals[item.key]
            hasher.update(f"{describe(item.key)} {local.dtype} {tuple(local.shape)};".encode())
            hasher.update(to_bytes(local))
        for parts in self._host.capture_model_state().values():
            for name, data in parts.items():
                hasher.update(name.encode())
                hasher.update(data)
        return hasher.hexdigest()

    def _capture_plan(self) -> Plan:
        if self._plan is None:
            raise StateError("record() comes first: it says what belongs to the capture")
        return self._plan


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
