"""Live objects are prepared for the bytes of a snapshot.

`require_complete`, `prepare_targets` and `announce_write` prepare live objects for the bulk of a snapshot: they
find parameters, and find, create or remove optimizer state.

Only the main thread may call them. Everything is compared before anything is written: a snapshot that does not fit
leaves the objects unchanged.

`LoadedApart` restores parameters and optimizer state that overlap themselves, such as `x.expand(...)`: torch refuses
to write into memory that several elements share. So they are loaded into memory apart, and from there each shared
element once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deadpool.errors import OtherStructure, StateError
from deadpool.protocol.seal import Extent, extent_of
from deadpool.snapshot.copying.bulk import LiveTensor, find_live
from deadpool.snapshot.identity.buffer_objects import BufferPlace
from deadpool.snapshot.record.layout import BulkRegion, SlotLayout, TensorEntry
from deadpool.snapshot.record.placement import dtensor_spec_of, make_dtensor
from deadpool.snapshot.record.tensors import dense_part, integer_view, local_part, set_local_part
from deadpool.snapshot.state.buffers import module_of
from deadpool.snapshot.state.objects import Key, ModuleTrees, Objects, ProtectedOptimizer, describe

_NAMED = 4  # so many parameters are named in an error
_BULK_REGIONS: tuple[BulkRegion, ...] = ("unique", "replica")


def require_complete(layout: SlotLayout, extent: Extent) -> None:
    for region in _BULK_REGIONS:
        expected, actual = layout.region_bytes(region), extent_of(extent, region)
        if expected != actual:
            raise StateError(f"the snapshot's layout needs {expected} bytes in region {region!r}, which has {actual}")


def prepare_targets(
    objects: Objects, trees: ModuleTrees, layout: SlotLayout, placements: Mapping[Key, BufferPlace]
) -> dict[Key, Tensor]:
    """Makes the live tensors those of the layout, with any contents, and returns them as the targets of a load. Buffers
    that have `placements` are placed by the caller."""
    with torch.no_grad():
        targets = _find_targets(objects, trees, layout, placements)
        for optimizer in objects.optimizers.values():
            _install_state(optimizer, layout.state_keys.get(optimizer.name, {}), targets)
        for key, target in targets.items():
            if key[0] == "buffer" and not _is_placed(placements, key, target):
                module_of(trees, key)._buffers[key[3]] = target
    return targets


def announce_write(tensors: Iterable[Tensor]) -> None:
    """Increments version counters: caches of derived values (fp8 weights, parametrisations) depend on them."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def _is_placed(placements: Mapping[Key, BufferPlace], key: Key, target: Tensor) -> bool:
    return key in placements and placements[key].target is target


def _find_targets(
    objects: Objects, trees: ModuleTrees, layout: SlotLayout, placements: Mapping[Key, BufferPlace]
) -> dict[Key, Tensor]:
    live = {item.key: item for item in find_live(objects)[0]}
    _require_same_params(objects, layout)
    return {
        entry.key: _buffer(trees, entry, placements.get(entry.key))
        if entry.key[0] == "buffer"
        else _target(objects, entry, live.get(entry.key))
        for entry in layout.entries
    }


def _buffer(trees: ModuleTrees, entry: TensorEntry, placement: BufferPlace | None) -> Tensor:
    """Returns the buffer that is placed or live if it fits, else a new one: a forward pass may have replaced it, or not
    made it yet."""
    live = module_of(trees, entry.key)._buffers.get(entry.key[3]) if placement is None else placement.target
    if live is not None and live.device.type == entry.device_type and not _mismatch(entry, live):
        return live
    if entry.dtensor_spec is not None:
        raise StateError(f"{describe(entry.key)}: a DTensor buffer changed its shape, it cannot be put back")
    return torch.empty(entry.shape, dtype=entry.dtype, device=entry.device_type)


def _require_same_params(objects: Objects, layout: SlotLayout) -> None:
    stored = {entry.key: entry for entry in layout.entries if entry.key[0] == "param"}
    problems = [
        f"{describe(key)} has shape {tuple(param.shape)} here and is not in the snapshot"
        for key, param in objects.params.items()
        if key not in stored
    ]
    for key, entry in stored.items():
        if key not in objects.params:
            problems.append(f"{describe(key)} has shape {entry.shape} in the snapshot and does not exist here")
        elif mismatch := _mismatch(entry, objects.params[key]):
            problems.append(f"{describe(key)}: {mismatch}")
    if problems:
        more = f", and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise OtherStructure(f"{'; '.join(problems[:_NAMED])}{more}")


def _mismatch(entry: TensorEntry, tensor: Tensor) -> str | None:
    """Returns how a live tensor differs from the stored one, or None if the stored bytes fit."""
    local = local_part(tensor) if entry.key[0] != "buffer" else dense_part(local_part(tensor))
    if tuple(local.shape) != entry.shape:
        return f"shape {tuple(local.shape)} here, {entry.shape} in the snapshot"
    if local.dtype != entry.dtype:
        return f"dtype {local.dtype} here, {entry.dtype} in the snapshot"
    dtensor_spec = dtensor_spec_of(tensor, describe(entry.key))
    if dtensor_spec != entry.dtensor_spec:
        return f"DTensor placements, shape and stride {dtensor_spec} here, {entry.dtensor_spec} in the snapshot"
    return None


def _target(objects: Objects, entry: TensorEntry, live: LiveTensor | None) -> Tensor:
    if entry.key[0] == "param":
        return objects.params[entry.key]
    fits = live is not None and not _mismatch(entry, live.tensor)
    if fits and live is not None and live.tensor.device.type == entry.device_type:
        return live.tensor
    return _create(entry, _param_of(objects, entry))


def _param_of(objects: Objects, entry: TensorEntry) -> Tensor:
    _, name, index, _ = entry.key
    optimizer = objects.optimizers.get(name)
    if optimizer is None or not isinstance(index, int) or index >= len(optimizer.params):
        raise OtherStructure(
            f"{entry.name} of shape {entry.shape} is in the snapshot, but {name} has no parameter {index} here"
        )
    return optimizer.params[index]


def _create(entry: TensorEntry, param: Tensor) -> Tensor:
    local_param = local_part(param)
    name = entry.name or describe(entry.key)
    if entry.like_param and tuple(local_param.shape) != entry.shape:
        raise OtherStructure(
            f"{name}: its parameter has shape {tuple(local_param.shape)} here, {entry.shape} is stored"
        )
    if entry.like_param:
        local = torch.empty_like(local_param, dtype=entry.dtype)
    else:
        here = local_param.device if local_param.device.type == entry.device_type else entry.device_type
        local = torch.empty(entry.shape, dtype=entry.dtype, device=here)
    return local if entry.dtensor_spec is None else make_dtensor(local, entry.dtensor_spec, param, name)


def _install_state(
    optimizer: ProtectedOptimizer, keys_by_index: dict[int, tuple[Any, ...]], targets: dict[Key, Tensor]
) -> None:
    """Gives each parameter's state exactly the stored keys, in their order. The host part restores other values."""
    for index, param in enumerate(optimizer.params):
        keys = keys_by_index.get(index)
        if keys is None:
            optimizer.inner.state.pop(param, None)
            continue
        state = optimizer.inner.state.setdefault(param, {})
        before = dict(state)
        state.clear()
        for key in keys:
            state[key] = targets.get(("state", optimizer.name, index, key), before.get(key))


@dataclass(frozen=True, slots=True, eq=False)
class LoadedApart:
    target: Tensor
    loaded: Tensor

    def write(self) -> None:
        dense = dense_part(local_part(self.target))
        dense.copy_(self.loaded[tuple(map(slice, dense.shape))])

    def is_written(self) -> bool:
        return integer_view(local_part(self.target)).equal(integer_view(self.loaded))


def memory_to_load(targets: Mapping[Key, Tensor]) -> tuple[dict[Key, Tensor], list[LoadedApart]]:
    """Returns the memory that each target is loaded into, and those whose memory is not their own. Expanded buffers are
    stored without their repetitions."""
    memory = {key: local_part(target) for key, target in targets.items()}
    apart: list[LoadedApart] = []
    for key, local in memory.items():
        dense = dense_part(local)
        if key[0] == "buffer":
            memory[key] = dense
        elif dense is not local:
            memory[key] = torch.empty(local.shape, dtype=local.dtype, device=local.device)
            apart.append(LoadedApart(targets[key], memory[key]))
    return memory, apart


def write_apart(apart: Iterable[LoadedApart]) -> None:
    """What cannot be written where it lies keeps the memory that it was loaded into: it was not expanded when it was
    stored, or shares its elements with one of another value."""
    apart = list(apart)
    with torch.no_grad():
        for each in apart:
            each.write()
        for each in apart:
            if not each.is_written():
                set_local_part(each.target, each.loaded)
