"""Clones module buffers on their device at the step boundary, so that the host does not wait for the device.

A forward pass writes buffers (batch-norm statistics, fp8 maxima), so they cannot be copied while the next one runs.
Copying them to the host at the boundary would make the host wait for the device. So they are cloned on the device, on
the script's own stream. A capture copies the clone, and a rank that keeps its memory gets its buffers back from it.

A buffer whose shape changes from step to step has no fixed place in a slot: it goes into the boundary record.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deadpool.errors import StateError
from deadpool.snapshot.record.tensors import dense_part, integer_view, is_dtensor, local_address, local_part
from deadpool.snapshot.state.objects import Key, ModuleTrees

Signature = tuple[tuple[Key, torch.Size, torch.dtype, torch.device], ...]


class BufferStage:
    """Holds the clones. Only the main thread may use it."""

    def __init__(self, trees: ModuleTrees, *, include_host: bool) -> None:
        """Prepares to clone buffers. If `include_host` is set those in host memory are cloned too; otherwise they go
        into the boundary record.
        """
        self._trees, self._include_host = trees, include_host
        self._shapes: dict[Key, torch.Size] = {}
        self._unsteady: set[Key] = set()
        self._views: dict[Key, Tensor] = {}
        self._sources: list[Tensor] = []
        self._addresses: list[int] = []
        self._pairs: list[tuple[list[Tensor], list[Tensor]]] = []

    @property
    def device_bytes(self) -> int:
        return sum(view.nbytes for view in self._views.values() if view.device.type != "cpu")

    @property
    def keys(self) -> frozenset[Key]:
        """Returns the keys of the buffers that were cloned last."""
        return frozenset(self._views)

    def find(self) -> list[tuple[Key, Tensor]]:
        """Returns the buffers to be cloned now, in the order of their modules."""
        found = []
        for key, buffer in self._all():
            if not self._is_eligible(buffer):
                continue
            shape = dense_part(buffer).shape
            if self._shapes.setdefault(key, shape) != shape:
                self._unsteady.add(key)
            if key not in self._unsteady:
                found.append((key, buffer))
        return found

    def match_snapshot(self, stored: frozenset[Key]) -> None:
        """Clones the same buffers as the restored snapshot, whose clones were `stored`, so that layouts agree."""
        here = {key: dense_part(buffer).shape for key, buffer in self._all() if self._is_eligible(buffer)}
        self._shapes = here
        self._unsteady = set(here) - stored

    def allocate(self, ordered: list[tuple[Key, Tensor]]) -> dict[Key, Tensor]:
        """Allocates memory for the clones of these buffers, side by side in this order."""
        self._views, self._sources = {}, []
        totals: dict[tuple[torch.device, int], list[tuple[Key, Tensor]]] = {}
        for key, buffer in ordered:
            local = dense_part(local_part(buffer))
            totals.setdefault((local.device, local.dtype.itemsize), []).append((key, local))
        for (device, _), members in totals.items():
            count = sum(local.numel() for _, local in members)
            room, start = torch.empty(count, dtype=integer_view(members[0][1]).dtype, device=device), 0
            for key, local in members:
                part = room[start : start + local.numel()]
                self._views[key] = part.view(local.dtype).view(local.shape)
                start += local.numel()
        return self._views

    def clone(self, buffers: list[tuple[Key, Tensor]]) -> None:
        """Enqueues the cloning of these buffers behind the work that was enqueued so far."""
        if not buffers:
            return
        tensors = [buffer for _, buffer in buffers]
        if not self._knows(tensors):
            self._pairs = list(_pairs([(self._views[key], dense_part(local_part(buffer))) for key, buffer in buffers]))
            self._sources = tensors
            self._addresses = list(map(local_address, tensors))
        with torch.no_grad():
            for targets, sources in self._pairs:
                torch._foreach_copy_(targets, sources)

    def restore(self) -> None:
        """Copies the last clones back into the live buffers."""
        with torch.no_grad():
            for key, view in self._views.items():
                _put(self._trees, key, view)

    def _all(self) -> Iterator[tuple[Key, Tensor]]:
        for name, submodules in self._trees.paths.items():
            for path, module in submodules.items():
                for key, buffer in module._buffers.items():
                    if buffer is not None:
                        yield ("buffer", name, path, key), buffer

    def _is_eligible(self, buffer: Tensor) -> bool:
        """The size of a sparse buffer follows its contents."""
        return (self._include_host or buffer.device.type != "cpu") and buffer.layout == torch.strided

    def _knows(self, tensors: list[Tensor]) -> bool:
        same = len(tensors) == len(self._sources) and all(map(operator.is_, tensors, self._sources))
        return same and list(map(local_address, tensors)) == self._addresses


def signature_of(buffers: list[tuple[Key, Tensor]]) -> Signature:
    """Returns a value that is equal as long as the same memory can hold the clones."""
    return tuple((key, dense_part(buffer).shape, buffer.dtype, buffer.device) for key, buffer in buffers)


def module_of(trees: ModuleTrees, key: Key) -> nn.Module:
    _, name, path, _ = key
    module = trees.paths.get(name, {}).get(str(path))
    if module is None:
        raise StateError(f"{name}: the snapshot has buffers of {path!r}, which is not in the module here")
    return module


def _put(trees: ModuleTrees, key: Key, value: Tensor) -> None:
    """Writes in place if the live buffer fits; a forward pass may have put another tensor there, or None."""
    module, name = module_of(trees, key), key[3]
    live = module._buffers.get(name)
    fits = live is not None and dense_part(local_part(live)).shape == value.shape and live.dtype == value.dtype
    if live is not None and fits and not live.is_inference():
        dense_part(local_part(live)).copy_(value)
    elif live is not None and is_dtensor(live):
        raise StateError(f"{key[1]}.{key[2]}.{name}: a DTensor buffer changed its shape, it cannot be put back")
    else:
        module._buffers[name] = value.clone()


def _pairs(pairs: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Groups pairs for one call per device and dtype. Tensors that are not contiguous get a call of their own."""
    together: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for view, local in pairs:
        if local.numel() == 0:
            continue
        view, local = integer_view(view), integer_view(local)
        if not local.is_contiguous():
            yield [view], [local]
            continue
        targets, sources = together.setdefault((local.device, local.dtype), ([], []))
        targets.append(view)
        sources.append(local)
    yield from together.values()
