"""Finds the bulk of a rank's state, that is its parameters, optimizer state and cloned buffers, and plans their copy.

The main thread scans at the step boundary. A LiveBulk is immutable, and the copying thread may read it. A scan that
finds the same tensors as the last one returns the same LiveBulk, so that a usual step costs only a comparison.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deadpool.errors import StateError
from deadpool.snapshot.copying.moves import TensorCheck
from deadpool.snapshot.record.layout import BulkRegion, Packer, SlotLayout, TensorEntry, encode_layout, packing_order
from deadpool.snapshot.record.placement import CheckpointNames, RankSets, dtensor_spec_of
from deadpool.snapshot.record.tensors import local_part, require_storable, shard_in
from deadpool.snapshot.state.buffers import BufferStage, Signature, signature_of
from deadpool.snapshot.state.objects import Key, Objects, ProtectedOptimizer, describe

StateKeys = dict[str, dict[int, tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor of the bulk. `param` is the tensor itself, or the parameter whose optimizer state it is. A `sharded`
    tensor is different on every rank, even if its parameter is replicated."""

    key: Key
    tensor: Tensor
    param: Tensor
    sharded: bool


@dataclass(frozen=True, slots=True, eq=False)
class LiveBulk:
    """Live tensors in canonical order, and their places in a slot.

    `locals` share memory with the live tensors but are other objects: so a framework that puts other data under a
    parameter during forward does not change what is copied. For buffers they are the clones. `shards` are the objects
    inside of DTensors.
    """

    live: tuple[LiveTensor, ...]
    locals: dict[Key, Tensor]
    shards: dict[Key, Tensor]
    layout: SlotLayout
    encoded_layout: bytes
    check: TensorCheck
    buffers: Signature


class BulkScanner:
    """Finds the live tensors and keeps what it found up to date."""

    def __init__(
        self, objects: Objects, in_replica_region: frozenset[int], stage: BufferStage, ranks: RankSets
    ) -> None:
        self._objects = objects
        self._in_replica_region = in_replica_region
        self._ranks = ranks
        self._names = CheckpointNames(objects)
        self._stage = stage
        self._params = list(objects.params.values())
        self._bulk: LiveBulk | None = None

    def scan(self) -> LiveBulk:
        """Clones buffers and returns the bulk as it is now. Only the main thread may call it."""
        buffers = self._stage.find()
        if self._bulk is None or not self._is_valid(self._bulk, buffers):
            self._bulk = self._find_bulk(buffers)
        self._stage.clone(buffers)
        return self._bulk

    def forget(self) -> None:
        """Tensors get other addresses."""
        self._bulk = None

    def renew(self, gone: Mapping[int, Tensor]) -> None:
        """The parameters of the objects are others now. Nobody claims that new ones are the same elsewhere."""
        self._params = list(self._objects.params.values())
        self._names = CheckpointNames(self._objects)
        self._part_from(gone)

    def adopt(self, layout: SlotLayout) -> None:
        """Places parameters in the regions where the snapshot has them, because those of all ranks have to agree."""
        unique = (entry.key for entry in layout.entries if entry.key[0] == "param" and entry.region == "unique")
        self._part_from({id(self._objects.params[key]) for key in unique})

    def _part_from(self, ids: Collection[int]) -> None:
        if self._in_replica_region.intersection(ids):
            self._bulk = None
            self._in_replica_region -= frozenset(ids)
            self._ranks.forget(ids)

    def still_finds(self, bulk: LiveBulk) -> bool:
        """Returns whether parameters and optimizer state are the same tensors in the same memory as in the bulk."""
        return bulk.check.still_holds(self._params, self._objects.optimizers)

    def _is_valid(self, bulk: LiveBulk, buffers: list[tuple[Key, Tensor]]) -> bool:
        return self.still_finds(bulk) and bulk.buffers == signature_of(buffers)

    def _find_bulk(self, buffers: list[tuple[Key, Tensor]]) -> LiveBulk:
        live, state_keys = find_live(self._objects)
        live += [LiveTensor(key, buffer, buffer, True) for key, buffer in buffers]
        for item in live:
            require_storable(item.tensor, describe(item.key))
        ordered = sorted(live, key=_packing_order)
        locals_ = {item.key: local_part(item.tensor) for item in live}
        shards = {item.key: shard for item in live if (shard := shard_in(item.tensor)) is not None}
        locals_ |= self._stage.allocate([(item.key, item.tensor) for item in ordered if item.key[0] == "buffer"])
        packer = Packer()
        entries = tuple(self._entry(item, locals_[item.key], packer) for item in ordered)
        layout = SlotLayout(entries=entries, state_keys=state_keys, ranks=self._ranks.all())
        check = TensorCheck.of(self._params, self._objects.optimizers)
        return LiveBulk(tuple(live), locals_, shards, layout, encode_layout(layout), check, signature_of(buffers))

    def _entry(self, item: LiveTensor, local: Tensor, packer: Packer) -> TensorEntry:
        region: BulkRegion = "unique" if item.sharded or id(item.param) not in self._in_replica_region else "replica"
        nbytes = local.numel() * local.dtype.itemsize
        param = local_part(item.param)
        like_param = item.key[0] != "buffer" and local.shape == param.shape and local.device == param.device
        start, alike, sharing = self._ranks.place(item.tensor, item.param, sharded=item.sharded)
        return TensorEntry(
            key=item.key,
            dtype=local.dtype,
            shape=tuple(local.shape),
            nbytes=nbytes,
            region=region,
            offset=packer.place(region, nbytes),
            device_type=local.device.type,
            like_param=like_param,
            dtensor_spec=dtensor_spec_of(item.tensor, describe(item.key)),
            name=self._names.of(item.key, item.param),
            start=start,
            alike=alike,
            sharing=sharing,
        )


def _packing_order(item: LiveTensor) -> tuple[int, int]:
    local = local_part(item.tensor)
    return packing_order(item.key[0], local.dtype.itemsize, local.numel())


def find_live(objects: Objects) -> tuple[list[LiveTensor], StateKeys]:
    """Returns all bulk tensors in canonical order, and the keys of each parameter's optimizer state."""
    live = [LiveTensor(key, param, param, False) for key, param in objects.params.items()]
    state_keys: StateKeys = {}
    for name, optimizer in objects.optimizers.items():
        keys = state_keys[name] = {}
        for index, param, state in states_of(optimizer):
            keys[index] = tuple(state)
            for key, value in state.items():
                if isinstance(value, Tensor):
                    live.append(LiveTensor(("state", name, index, key), value, param, optimizer.is_sharded))
    return live, state_keys


def states_of(optimizer: ProtectedOptimizer) -> Iterator[tuple[int, Tensor, dict[Any, Any]]]:
    """Yields (index in the flattened groups, parameter, its state) for each parameter that has state."""
    all_states = optimizer.inner.state
    remaining = sum(1 for key in all_states if isinstance(key, Tensor))
    for index, param in enumerate(optimizer.params):
        state = all_states.get(param)
        if state is not None:
            remaining -= 1
            yield index, param, state
    if remaining > 0:
        raise StateError(
            f"{optimizer.name}.state has entries for {remaining} tensors that are in none of its param_groups; "
            "delete those entries when you remove a parameter"
        )
