"""Takes the floats out of an encoded record: what else differs between two processes is no time.

An object that a script passes may measure time, and times differ in every process. They are floats: so the floats of an
object are compared apart from the rest of it. Those of tensors and numpy arrays stay where they are.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import msgpack
import numpy as np

from deadpool.snapshot.record.record import code_of

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
