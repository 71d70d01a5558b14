"""The digests of all parts of a rank's state, for the audit of exactness: which part differs, if one does.

Tensors in host memory are read as they are. Those of a device are added up on it, each element times an odd number of
its own, modulo 2**64: a single changed element always shows, and several only fail to by a chance of 2**-64 or so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from deadpool.protocol.messages import Part
from deadpool.protocol.messages.audits import PartKind
from deadpool.snapshot.bulk import find_live
from deadpool.snapshot.checksums import checksum, combine_pieces
from deadpool.snapshot.host_state import HostParts
from deadpool.snapshot.loaders import LoaderPosition
from deadpool.snapshot.objects import ModuleTrees, Objects, describe
from deadpool.snapshot.tensors import integer_view, local_part, to_bytes

MOST_PARTS = 512
"""Tensors of one kind that are told apart by name. Where there are more, neighbours share a part."""

_CHUNK = 1 << 22
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)

Named = list[tuple[str, Tensor]]


def parts_of(objects: Objects, trees: ModuleTrees, host: HostParts, ignored: frozenset[str]) -> tuple[Part, ...]:
    """`ignored` are objects that are no state of the script."""
    live = find_live(objects)[0]
    grads = [(describe(key), param.grad) for key, param in objects.params.items() if param.grad is not None]
    by_kind: dict[PartKind, Named] = {
        "buffer": list(_buffers(trees)),
        "gradient": [(name, grad) for name, grad in grads if grad.layout is torch.strided],
        "parameter": [(describe(item.key), item.tensor) for item in live if item.key[0] == "param"],
        "optimizer": [(describe(item.key), item.tensor) for item in live if item.key[0] != "param"],
    }
    positions = frozenset(name for name, each in objects.stateful.items() if isinstance(each, LoaderPosition))
    return (
        *_host_parts(host, positions, ignored),
        *(part for kind, named in by_kind.items() for part in _bulk(kind, named)),
    )


def _buffers(trees: ModuleTrees) -> Iterator[tuple[str, Tensor]]:
    for name, submodules in trees.paths.items():
        for path, module in submodules.items():
            for key, buffer in module._buffers.items():
                if buffer is not None and buffer.layout is torch.strided:
                    yield describe(("buffer", name, path, key)), buffer


def _host_parts(host: HostParts, positions: frozenset[str], ignored: frozenset[str]) -> Iterator[Part]:
    kinds: Mapping[str, PartKind] = {
        "stateful": "object",
        "modes": "modes",
        "rng": "random",
        "module": "object",
        "optimizer": "optimizer",
    }
    for group, values in host.items():
        for name, data in values.items():
            kind = "position" if name in positions else kinds.get(group, "object")
            if name not in ignored:
                yield Part(kind=kind, name=_NAMES.get(group, name), digest=checksum(data))


_NAMES = {"modes": "of modules and parameters", "rng": "number generators"}


def _bulk(kind: PartKind, named: Named) -> Iterator[Part]:
    digests = _digests([local_part(tensor) for _, tensor in named])
    together = -(-len(named) // MOST_PARTS) or 1
    for start in range(0, len(named), together):
        names = [name for name, _ in named[start : start + together]]
        name = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        yield Part(kind=kind, name=name, digest=combine_pieces(digests[start : start + together]))


def _digests(tensors: list[Tensor]) -> list[int]:
    """Waits for a device once, not once per tensor."""
    sums = {i: _sum_on_device(each) for i, each in enumerate(tensors) if _is_summed(each)}
    by_device: dict[torch.device, list[int]] = {}
    for index, each in sums.items():
        by_device.setdefault(each.device, []).append(index)
    found = dict[int, int]()
    for indices in by_device.values():
        values = torch.stack([sums[i] for i in indices]).tolist()
        found |= {i: value % (1 << 64) for i, value in zip(indices, values, strict=True)}
    return [found[i] if i in found else checksum(to_bytes(each)) for i, each in enumerate(tensors)]


def _is_summed(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu" and tensor.dtype.itemsize <= 8 and tensor.numel() > 0


def _sum_on_device(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        flat, total = integer_view(tensor.contiguous()).reshape(-1), None
        for start in range(0, flat.numel(), _CHUNK):
            chunk = flat[start : start + _CHUNK].to(torch.int64)
            weights = torch.arange(start, start + chunk.numel(), device=flat.device).mul_(_SPREAD).bitwise_or_(1)
            part = chunk.add_(1).mul_(weights).sum()
            total = part if total is None else total + part
        assert total is not None
        return total
