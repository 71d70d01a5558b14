"""Messages <-> bytes: msgpack, with every record type as an extension named by its class. No code-carrying format.

Only types that `protocol.messages.ALL` lists can be made from bytes, with fields of the types that they declare;
anything else is a WireError.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import msgpack

from deadpool.errors import WireError
from deadpool.protocol import messages
from deadpool.wire.shapes import Check, checks_of

LENGTH_LIMITS = {"max_array_len": 1 << 17, "max_map_len": 1 << 17}
"""Room for a list is taken when its length is read, before its items are: enough for 100,000 ranks, no more."""

_RECORD = 1
_DEPTH_LIMIT = 32  # each level is a call of C that calls us again, and that stack has no guard of its own
_TYPES: dict[str, type] = {cls.__name__: cls for cls in messages.ALL}
_FIELDS: dict[type, tuple[str, ...]] = {cls: tuple(f.name for f in dataclasses.fields(cls)) for cls in messages.ALL}
_CHECKS: dict[type, tuple[Check, ...]] = {cls: checks_of(cls) for cls in messages.ALL}


def encode(message: Any) -> bytes:
    return bytes(msgpack.packb(message, default=_pack_record, strict_types=True))


def decode(data: bytes) -> Any:
    return _decode(data, 0)


def _decode(data: bytes, depth: int) -> Any:
    if depth > _DEPTH_LIMIT:
        raise WireError(f"records in more than {_DEPTH_LIMIT} records are none of ours")
    hook = functools.partial(_unpack_record, depth + 1)
    try:
        return msgpack.unpackb(data, ext_hook=hook, use_list=False, strict_map_key=False, **LENGTH_LIMITS)
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"{len(data)} bytes are not a message: {error}") from error


def _pack_record(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    fields = _FIELDS.get(type(value))
    if fields is None:
        raise WireError(f"a {type(value).__name__} cannot travel")
    body = [type(value).__name__, *(getattr(value, name) for name in fields)]
    return msgpack.ExtType(_RECORD, encode(body))


def _unpack_record(depth: int, code: int, data: bytes) -> Any:
    if code != _RECORD:
        raise WireError(f"extension {code} is not one of ours")
    name, *values = _decode(data, depth)
    cls = _TYPES.get(name)
    if cls is None or len(values) != len(_FIELDS[cls]):
        raise WireError(f"{name!r} with {len(values)} fields is not a message of this version")
    for field, check, value in zip(_FIELDS[cls], _CHECKS[cls], values, strict=True):
        if not check(value):
            raise WireError(f"{name}.{field} is not what was agreed: a {type(value).__name__}")
    return cls(**dict(zip(_FIELDS[cls], values, strict=True)))
