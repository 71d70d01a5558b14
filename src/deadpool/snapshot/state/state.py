"""The protected training state of one rank: it is captured into slots and restored from them. protect() makes it.

Only the main thread may call mark(), record(), measure() and everything that restores, between steps. Until the
optimizer steps again, one thread at a time may open a copy of the tensors that the last record() found, and advance it.
Nothing at a boundary waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.errors import StateError
from deadpool.protocol.messages import Part
from deadpool.protocol.seal import Extent, Geometry
from deadpool.snapshot.arena.checksums import StateHasher
from deadpool.snapshot.arena.slot import Progress
from deadpool.snapshot.copying.bulk import BulkScanner, LiveBulk, find_live
from deadpool.snapshot.copying.copying import Boundary, BulkCopier, MakeLane, make_lane
from deadpool.snapshot.copying.rebuild import (
    LoadedApart,
    announce_write,
    memory_to_load,
    prepare_targets,
    require_complete,
    write_apart,
)
from deadpool.snapshot.copying.slot_copy import SlotCopy
from deadpool.snapshot.copying.slot_load import SlotLoad, make_chunks
from deadpool.snapshot.identity.gradients import put_memory_back
from deadpool.snapshot.identity.structure import LiveStructure, StructureChange
from deadpool.snapshot.identity.uncounted_writes import UncountedWrites
from deadpool.snapshot.record.layout import decode_layout, join_record, split_record
from deadpool.snapshot.record.placement import RankSets, choose_peers
from deadpool.snapshot.record.tensors import dense_part, local_part, to_bytes
from deadpool.snapshot.state import cures
from deadpool.snapshot.state.buffers import BufferStage
from deadpool.snapshot.state.freed_state import FreedState
from deadpool.snapshot.state.host_state import HostState
from deadpool.snapshot.state.objects import Key, ModuleTrees, describe, sort_objects
from deadpool.snapshot.state.own_state import find_metrics
from deadpool.snapshot.state.state_parts import parts_of

_SMALLEST_RECORD_CAPACITY = 256 << 10
_RECORD_HEADROOM = 4


@dataclass(frozen=True, slots=True, eq=False)
class Restoring:
    """A restore in progress: `load` copies the bulk to the targets, and the host part is restored at the end."""

    load: SlotLoad
    targets: dict[Key, Tensor]
    apart: list[LoadedApart]
    host: dict[str, dict[str, bytes]]


class ProtectedState:
    """The objects of one rank, captured as bulk and boundary record."""

    def __init__(
        self,
        objects: Mapping[str, object],
        *,
        replicas: Mapping[int, tuple[int, ...]],
        rank: int,
        node_of: Callable[[int], int],
        companions: Mapping[str, Any] | None = None,
        clone_host_buffers: bool = False,
        make_lane: MakeLane = make_lane,
    ) -> None:
        """`companions` are further objects whose state is captured, under names that no keyword can have.

        Buffers on a device are cloned at the boundary; with `clone_host_buffers` those in host memory are cloned too.
        """
        self._objects = sort_objects(objects)
        self._objects.stateful.update(find_metrics(self._objects.modules))
        self._objects.stateful.update(companions or {})
        self._peers, in_replica_region = choose_peers(
            self._objects.params.values(), replicas, rank=rank, node_of=node_of
        )
        self._trees = ModuleTrees(self._objects.modules)
        self._stage = BufferStage(self._trees, include_host=clone_host_buffers)
        self._scanner = BulkScanner(self._objects, in_replica_region, self._stage, RankSets(replicas, rank))
        self._host = HostState(self._objects, self._trees)
        self._structure = LiveStructure(self._objects)
        self._uncounted = UncountedWrites()
        self._copier = BulkCopier(make_lane, sorted({param.device for param in self._objects.params.values()}, key=str))
        self._bulk: LiveBulk | None = None
        self._looked_at: LiveBulk | None = None  # the bulk whose structure was told
        self._has_moved = False  # modules or groups are others since then, maybe over the same tensors
        self._start: Boundary | None = None
        self._written: list[int] = []  # version counters of the bulk's tensors at the last record()
        self._record_capacity = 0

    @property
    def peers(self) -> tuple[int, ...]:
        """Returns the ranks with an identical replica region, this rank included, or () if none is on another node."""
        return self._peers

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        return tuple(self._objects.modules.values())

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        return tuple(optimizer.outer for optimizer in self._objects.optimizers.values())

    @property
    def stateful(self) -> Mapping[str, Any]:
        """Returns the objects that are captured by their state_dict(), loaders among them, by name."""
        return self._objects.stateful

    @property
    def holders(self) -> tuple[object, ...]:
        """Returns the protected objects that hold state of optimizers: optimizers, and objects with a state_dict."""
        inner = (optimizer.inner for optimizer in self._objects.optimizers.values())
        return (*self.optimizers, *inner, *self._objects.stateful.values())

    @property
    def param_ids(self) -> frozenset[int]:
        return frozenset(map(id, self._objects.params.values()))

    def owns_params_of(self, optimizer: Optimizer) -> bool:
        """Returns whether the optimizer steps protected parameters."""
        protected = self.param_ids
        return any(id(param) in protected for group in optimizer.param_groups for param in group["params"])

    @property
    def is_on_device(self) -> bool:
        """Returns whether copies come from the memory of a device, not of the host."""
        return self._copier.has_device

    @property
    def device_bytes(self) -> int:
        """Returns how much device memory protection takes for itself."""
        return self._copier.device_bytes + self._stage.device_bytes

    def mark(self) -> Boundary:
        """Marks the end of everything that was enqueued so far. When it is done, the state is that of this moment."""
        return self._copier.mark()

    def drain(self) -> None:
        """Waits until no device works for this process any more."""
        self._copier.drain()

    def measure(self) -> Geometry:
        """Returns the geometry of the slot that this state needs now. It grows with optimizer state; the capacity for
        the record grows only if the record does not fit."""
        self._trees.refresh()
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
        """Returns the boundary record of this moment and begins a capture: open_copy() copies what was found here."""
        bulk = self._begin_capture()
        return join_record(bulk.encoded_layout, self._host.capture(self._stage.keys))

    def _begin_capture(self) -> LiveBulk:
        """Makes the state of this moment the one that is copied, and that a rank which keeps its memory returns to."""
        self._use_params(self._structure.follow())
        self._bulk = self._scanner.scan()
        self._copier.use(self._bulk)
        self._start = self._copier.mark()
        self._written = _write_counts(self._bulk)
        self._uncounted.look(self._bulk)
        return self._bulk

    def _use_params(self, gone: Mapping[int, Tensor] | None) -> None:
        """Other tensors are parameters now than before. `gone` are those that are none any more; None: all stayed."""
        if gone is not None:
            self._has_moved = True
            self._trees.refresh()
            self._scanner.renew(gone)
            self._host.forget_gradients()

    def take_structure_change(self) -> StructureChange | None:
        """Returns how names and shapes of parameters differ from those at protect(), if it was not told yet."""
        if self._bulk is self._looked_at and not self._has_moved:
            return None  # the same tensors with the same shapes
        self._looked_at, self._has_moved = self._bulk, False
        return self._structure.take_change()

    def take_flags_at_risk(self) -> tuple[str, ...]:
        """Returns attributes of modules that were changed and would not be restored (attributes.py)."""
        return self._host.take_flags_at_risk()

    def take_buffers_over_params(self) -> tuple[str, ...]:
        """Returns buffers that were assigned after protect() and share memory with a parameter, once."""
        return self._host.take_buffers_over_params()

    @property
    def has_other_names(self) -> bool:
        """Returns whether modules got or lost parameters or submodules since the last record()."""
        return self._structure.has_other_names

    def forget_first_structure(self) -> None:
        """No dry step has to be undone any more."""
        self._structure.forget_first()

    def extent(self, record: bytes) -> Extent:
        """Returns how much of a slot the capture that began with this record fills."""
        layout = self._bulk_of_capture().layout
        return Extent(
            record_bytes=len(record),
            unique_bytes=layout.region_bytes("unique"),
            replica_bytes=layout.region_bytes("replica"),
        )

    def open_copy(self, slot: memoryview, geometry: Geometry) -> SlotCopy:
        """Opens a copy of the bulk into the slot. Raises ArenaError if the slot is too small."""
        bulk = self._bulk_of_capture()
        geometry.check(self.extent(b""))
        assert self._start is not None
        return self._copier.open(bulk, slot, geometry, self._start)

    def copy_bulk(self, slot: memoryview, geometry: Geometry, *, cancelled: Callable[[], bool]) -> bool:
        """Copies the bulk into the slot and waits for it. Returns False if the copy was given up."""
        return self.open_copy(slot, geometry).advance(cancelled)

    def restore(self, slot: memoryview, geometry: Geometry, extent: Extent) -> None:
        """Restores the live objects from the slot. Raises StateError and changes nothing if the snapshot is of other
        objects."""
        start = geometry.offset("record")
        record = bytes(slot[start : start + extent.record_bytes])
        self.finish_restore(self.begin_restore(record, slot, geometry, extent))

    def begin_restore(self, record: bytes, slot: memoryview, geometry: Geometry, extent: Extent) -> Restoring:
        """Prepares the live objects for the snapshot with this record, which may still be arriving in the slot. What
        the live objects held is lost, except after a StateError."""
        encoded_layout, host = split_record(record)
        layout = decode_layout(encoded_layout)
        require_complete(layout, extent)
        self._host.require_same_objects(host)
        self._put_back()
        self._use_params(self._structure.match(layout))
        self._trees.refresh()
        placements = self._host.find_buffers(host)
        targets = prepare_targets(self._objects, self._trees, layout, placements)
        self._host.place_buffers(placements)
        self._scanner.adopt(layout)
        memory, apart = memory_to_load(targets)
        chunks = make_chunks(layout.entries, memory, np.frombuffer(slot, np.uint8), geometry)
        return Restoring(SlotLoad(chunks, self._copier.load), targets, apart, host)

    def finish_restore(self, restoring: Restoring, progress: Progress | None = None) -> int:
        """Finishes a restore whose snapshot is complete in the slot. Returns how many bytes were loaded before."""
        early_bytes = restoring.load.finish(progress)
        self._copier.await_loaded()
        write_apart(restoring.apart)
        announce_write(restoring.targets.values())
        self._host.restore(restoring.host)
        self._stage.match_snapshot(frozenset(key for key in restoring.targets if key[0] == "buffer"))
        self._begin_capture()
        self._host.hold_buffers()
        return early_bytes

    def _put_back(self) -> None:
        """Gives a survivor the tensors and the memory of its last boundary back; a newcomer has none."""
        if self._bulk is not None:
            self._structure.put_back()
            put_memory_back(self._bulk, self._objects, without=self._structure.shards)

    def leave_restore(self) -> None:
        """Abandons a restore. No slot is read any more when this returns."""
        self._copier.await_loaded()

    def restore_record(self, record: bytes) -> None:
        """Restores the host part and the buffers, for a rank that is clean at the version and keeps its memory."""
        _, host = split_record(record)
        self._host.require_same_objects(host)
        self._put_back()
        self._host.place_buffers(self._host.find_buffers(host))
        self._stage.restore()
        self._host.restore(host)

    def restore_gradients(self) -> None:
        """Sets gradients to zeros where the restored version had any. Call it after a restore, and after frameworks
        have dropped what an aborted step left."""
        self._host.restore_gradients()

    @property
    def is_untouched(self) -> bool:
        """Returns whether nothing was written into parameters or optimizer state since the last record(). Writes
        through `tensor.data` are not noticed, because torch does not count them."""
        return self._bulk is not None and self._written == _write_counts(self._bulk)

    @property
    def is_as_recorded(self) -> bool:
        """Returns whether the last record() also found the same tensors in the same memory, with the same samples. An
        assignment to `tensor.data` always shows, a write through it may not."""
        if self._bulk is None or not self.is_untouched or self._uncounted.show_now:
            return False
        return cures.is_off("D3") or (self._structure.is_that_of_boundary and self._scanner.still_finds(self._bulk))

    def before_update(self) -> None:
        """An optimizer is about to write: what was written before it, without being counted, is found now."""
        self._uncounted.compare()

    @property
    def shows_uncounted_write(self) -> bool:
        """Returns whether something was written since the last record() that torch did not count, as far as the samples
        show it. The copying thread may ask too, until the copy is settled."""
        return self._uncounted.show_now

    @property
    def written_on_device(self) -> tuple[str, ...]:
        """Returns parameters on a device that were found to be written without being counted, after the fact."""
        return self._uncounted.on_device.written

    @property
    def has_uncounted_writes(self) -> bool:
        """Returns whether the script was found to write in ways that is_untouched does not notice."""
        return self._uncounted.found

    def release_slots(self) -> None:
        """Drops all references to slot memory. No copy may be running."""
        self._copier.release()

    def free_parked(self) -> FreedState:
        """Gives back the memory of parameters and optimizer state, whose contents are lost. Before the next restore it
        has to be allocated again. What was planned with the old addresses is forgotten."""
        freed = FreedState(dense_part(local_part(item.tensor)) for item in find_live(self._objects)[0])
        self._bulk, self._start = None, None
        self._scanner.forget()
        self._copier.release()
        freed.free()
        return freed

    def digest(self) -> str:
        """Checksum of parameters, buffers and optimizer state: equal if and only if they are."""
        hasher = StateHasher()
        for item in find_live(self._structure.objects_now())[0]:
            local = local_part(item.tensor)
            hasher.update(f"{describe(item.key)} {local.dtype} {tuple(local.shape)};".encode())
            hasher.update(to_bytes(local))
        for parts in self._host.capture_model_state().values():
            for name, data in parts.items():
                hasher.update(name.encode())
                hasher.update(data)
        return hasher.hexdigest()

    def parts(self, ignored: frozenset[str] = frozenset(), taken: Iterable[Tensor] = ()) -> tuple[Part, ...]:
        """Digests of all parts of the state as it is now, except for those of the objects that are `ignored`. `taken`
        are the parameters whose gradients an optimizer took in the step before."""
        host = self._host.capture(frozenset())
        return parts_of(self._structure.objects_now(), self._trees, host, ignored, taken)

    def _bulk_of_capture(self) -> LiveBulk:
        if self._bulk is None:
            raise StateError("call record() first: it decides what belongs to the capture")
        return self._bulk


def _write_counts(bulk: LiveBulk) -> list[int]:
    return [local._version for local in bulk.locals.values()]


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
