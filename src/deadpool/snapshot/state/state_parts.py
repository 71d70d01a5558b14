"""The digests of a rank's state, part by part.

`parts_of`: the digests of all parts of a rank's state, for the audit of exactness: which part differs, if one does.

Tensors in host memory are read as they are. Those of a device are read by it, and not copied (device_digest.py).

What an exact script computes again is equal, and decides. These do not: floats of objects, which may be times; what
the integrations keep of their frameworks, such as logs and progress bars; attributes of modules, whose flags say
what a process has done; and gradients that no optimizer took, which may be zeroed before one does.

`split_floats` and `pick` take the floats out of an encoded record: what else differs between two processes is no
time.

An object that a script passes may measure time, and times differ in every process. They are floats: so the floats of
an object are compared apart from the rest of it. Those of tensors and numpy arrays stay where they are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgpack
import numpy as np
import torch
from torch import Tensor

from deadpool.protocol.messages import Part
from deadpool.protocol.messages.rehearsals import PartKind
from deadpool.snapshot.arena.checksums import checksum, combine_pieces
from deadpool.snapshot.copying.bulk import find_live
from deadpool.snapshot.data.position import DataPosition
from deadpool.snapshot.record.record import code_of, encode
from deadpool.snapshot.record.tensors import array_over, integer_view, local_part, to_bytes
from deadpool.snapshot.state.device_digest import Begun, begin, digest_all, finish
from deadpool.snapshot.state.host_state import HostParts
from deadpool.snapshot.state.loaders import LoaderPosition
from deadpool.snapshot.state.objects import ModuleTrees, Objects, describe
from deadpool.snapshot.state.rng import is_sparse

_CONTAINERS = frozenset(map(code_of, (tuple, set, frozenset, OrderedDict, defaultdict, deque, Counter)))
_COMPLEX, _NUMPY_SCALAR = code_of(complex), code_of(np.generic)
_FLOATING = "fc"


def split_floats(data: bytes) -> tuple[bytes, bytes]:
    """Returns what encode() made without its floats, and these in their order. Nothing is decoded on a device."""
    found: list[Any] = []
    rest = _without(_unpack(data), found)
    return _pack(rest), _pack(found)


def pick(data: bytes, names: tuple[str, ...]) -> bytes:
    """Returns the encoded entries of these names of an encoded dict."""
    entries = _unpack(data)
    return _pack({name: entries[name] for name in names if entries.get(name)})


def _without(value: Any, found: list[Any]) -> Any:
    match value:
        case float():
            found.append(value)
            return None
        case msgpack.ExtType(code=code, data=payload):
            if code in _CONTAINERS:
                return msgpack.ExtType(code, _pack(_without(_unpack(payload), found)))
            if code == _COMPLEX or (code == _NUMPY_SCALAR and np.dtype(_unpack(payload)[0]).kind in _FLOATING):
                found.append(payload)
                return None
            return value
        case list():
            return [_without(each, found) for each in value]
        case dict():
            return {key: _without(each, found) for key, each in value.items()}
        case _:
            return value


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=msgpack.ExtType, strict_map_key=False, unicode_errors="surrogatepass")


MOST_PARTS = 512
"""Tensors of one kind that are told apart by name. Where there are more, neighbours share a part."""

Named = list[tuple[str, Tensor]]


def parts_of(
    objects: Objects, trees: ModuleTrees, host: HostParts, ignored: frozenset[str], taken: Iterable[Tensor]
) -> tuple[Part, ...]:
    """`ignored` are objects that are no state of the script, `taken` the parameters whose gradients an optimizer took
    in the step before."""
    live = find_live(objects)[0]
    moved = set(map(id, taken))
    gradients: dict[bool, Named] = {True: [], False: []}
    for key, param in objects.params.items():
        if param.grad is not None and param.grad.layout is torch.strided:
            gradients[id(param) in moved].append((describe(key), param.grad))
    parameters = [(describe(item.key), item.tensor) for item in live if item.key[0] == "param"]
    of_optimizers = [(describe(item.key), item.tensor) for item in live if item.key[0] != "param"]
    return (
        *_host_parts(objects, host, ignored),
        *_sparse_buffers(trees),
        *_bulk("buffer", [(name, each) for name, each in _buffers(trees) if each.layout is torch.strided]),
        *_bulk("gradient", gradients[True]),
        *_bulk("gradient", gradients[False], decides=False),
        *_bulk("parameter", parameters),
        *_bulk("optimizer", of_optimizers),
    )


def _buffers(trees: ModuleTrees) -> Iterator[tuple[str, Tensor]]:
    for name, submodules in trees.paths.items():
        for path, module in submodules.items():
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    yield describe(("buffer", name, path, key)), buffer


def _sparse_buffers(trees: ModuleTrees) -> Iterator[Part]:
    for name, buffer in _buffers(trees):
        if is_sparse(local := local_part(buffer)):
            yield Part(kind="buffer", name=name, digest=checksum(encode(local, name)))


def _host_parts(objects: Objects, host: HostParts, ignored: frozenset[str]) -> Iterator[Part]:
    """The objects of buffers are left out: their contents are compared, and a newcomer has objects of its own."""
    yield Part(kind="random", name="number generators", digest=checksum(host["rng"]["rng"]))
    yield Part(kind="modes", name="of modules and parameters", digest=checksum(host["modes"]["modes"]))
    for name, data in host["optimizer"].items():
        yield Part(kind="optimizer", name=name, digest=checksum(data))
    for name, data in host["module"].items():
        yield Part(kind="object", name=f"extra state of {name}", digest=checksum(pick(data, ("extra_state", "added"))))
    attributes = host["changes"]["attributes"]
    yield Part(kind="object", name="attributes of modules", digest=checksum(attributes), decides=False)
    for name, data in host["stateful"].items():
        if name not in ignored:
            yield from _parts_of_object(name, objects.stateful[name], data)


def _parts_of_object(name: str, value: object, data: bytes) -> Iterator[Part]:
    """An object of torch's, such as a scheduler, measures no time. Of a loader also stored is which iterators its own
    process has made: another one has made others."""
    room = type(value).__module__
    kind: PartKind = "object"
    for position, names in ((LoaderPosition, _POSITION), (DataPosition, _PLACE)):
        if isinstance(value, position):
            kind, data = "position", pick(data, names)
    if room.startswith(_UNDECIDED):
        yield Part(kind=kind, name=name, digest=checksum(data), decides=False)
    elif room.partition(".")[0] == "torch":
        yield Part(kind=kind, name=name, digest=checksum(data))
    else:
        rest, floats = split_floats(data)
        yield Part(kind=kind, name=name, digest=checksum(rest))
        yield Part(kind="floats", name=f"of {name}", digest=checksum(floats), decides=False)


_POSITION = ("iterator", "sources", "next", "generators", "epochs")
_PLACE = ("at", "start", "ahead", "workers", "data", "order", "source")
_UNDECIDED = ("deadpool.integrations.", "deadpool.trainer.")


def _bulk(kind: PartKind, named: Named, *, decides: bool = True) -> Iterator[Part]:
    digests = _digests([local_part(tensor) for _, tensor in named])
    together = -(-len(named) // MOST_PARTS) or 1
    for start in range(0, len(named), together):
        names = [name for name, _ in named[start : start + together]]
        name = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        yield Part(kind=kind, name=name, digest=combine_pieces(digests[start : start + together]), decides=decides)


def _digests(tensors: list[Tensor]) -> list[int]:
    """Waits for a device once, not once per tensor."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for each in tensors:
        if _is_on_device(each):
            by_device.setdefault(each.device, []).append(each)
    found = {device: iter(digest_all(of_device)) for device, of_device in by_device.items()}
    return [next(found[each.device]) if _is_on_device(each) else _host_digest(each) for each in tensors]


def begin_digest(tensor: Tensor) -> int | Begun:
    """Returns the digest, or what a device will make it of: its work is enqueued, and nobody waits for it."""
    return begin(tensor) if _is_on_device(tensor) else _host_digest(tensor)


def finish_digests(begun: Sequence[int | Begun]) -> list[int]:
    """Waits for a device once, not once per tensor."""
    by_device: dict[torch.device, list[Begun]] = {}
    for each in begun:
        if isinstance(each, Begun):
            by_device.setdefault(each.device, []).append(each)
    found = {device: iter(finish(of_device)) for device, of_device in by_device.items()}
    return [next(found[each.device]) if isinstance(each, Begun) else each for each in begun]


def _is_on_device(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu" and tensor.numel() > 0


def _host_digest(tensor: Tensor) -> int:
    """Memory that is plain is read where it is."""
    if not tensor.numel() or tensor.is_conj() or tensor.is_neg():
        return checksum(to_bytes(tensor))
    return checksum(array_over(integer_view(tensor).contiguous()).reshape(-1).view(np.uint8).data)
