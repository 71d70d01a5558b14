"""Messages <-> bytes: msgpack, with every record as the list of its fields (schema.py). No code-carrying format.

Only types that `protocol.messages.ALL` lists can be made from bytes, with fields of the types that they declare;
anything else is a WireError.
"""

from __future__ import annotations

from typing import Any

import msgpack

from deadpool.errors import WireError
from deadpool.wire.schema import pack, unpack

LENGTH_LIMITS = {"max_array_len": 1 << 17, "max_map_len": 1 << 17}
"""Room for a list is taken when its length is read, before its items are: enough for 100,000 ranks, no more."""


def encode(message: Any) -> bytes:
    return bytes(msgpack.packb(pack(message), default=_refuse))


def decode(data: bytes) -> Any:
    try:
        plain = msgpack.unpackb(data, ext_hook=_refuse_extension, use_list=False, strict_map_key=False, **LENGTH_LIMITS)
        return unpack(plain)
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"{len(data)} bytes are not a message: {error}") from error


def _refuse(value: Any) -> Any:
    raise WireError(f"a {type(value).__name__} cannot travel")


def _refuse_extension(code: int, data: bytes) -> Any:
    raise WireError(f"extension {code} is not one of ours")
