"""Messages to bytes and back: msgpack, written and read by msgspec. The format cannot carry code.

Only the classes that `protocol.messages.ALL` lists are made from bytes, with fields of the types that they declare. A
core may therefore trust the types of its inputs. Everything else is a WireError, which ends the link it came from and
nothing more. msgspec takes memory for what has arrived, not for a length that is only claimed.

A message without its last fields is read as if they had their defaults, which its sender could have written as well.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from deadpool.errors import WireError
from deadpool.protocol import messages
from deadpool.protocol.structs import FreeFormMessage, Message

_PLAIN = (bool, int, float, str, bytes)
_PLAIN_EXACTLY = frozenset({type(None), *_PLAIN})


def encode(message: Any) -> bytes:
    if not isinstance(message, Message):
        raise WireError(f"a {type(message).__name__} cannot travel")
    if isinstance(message, FreeFormMessage):
        _check_plain(msgspec.structs.astuple(message))
    return _ENCODER.encode(message)


def decode(data: bytes) -> Any:
    try:
        message = _DECODER.decode(data)
        if isinstance(message, FreeFormMessage):
            _check_plain(msgspec.structs.astuple(message))
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"{len(data)} bytes are not a message: {error}") from error
    return message


def _check_plain(value: Any) -> None:
    """msgspec also writes and reads dates, sets and more where `Any` is declared. Those are refused
    on both sides: the readers of such fields, and the JSON that many of them end in, know plain values only."""
    if type(value) in _PLAIN_EXACTLY:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            _check_plain(key)
            _check_plain(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_plain(item)
    elif not isinstance(value, _PLAIN):
        raise WireError(f"a {type(value).__name__} cannot travel")


def _to_plain(value: Any) -> Any:
    """Converts types that msgspec does not know: a subclass of a plain type, such as numpy.float64, travels as that
    type.
    """
    plain: Any
    for plain in (int, float, str, bytes, dict, list, tuple):
        if isinstance(value, plain):
            return plain(value)
    raise WireError(f"a {type(value).__name__} cannot travel")


def _refuse_extension(code: int, data: memoryview) -> Any:
    raise WireError(f"extension {code} is not one of ours")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_ANY_MESSAGE: Any = Union[messages.ALL]  # noqa: UP007 (a union of what a tuple lists has no other spelling)
_DECODER = msgspec.msgpack.Decoder(_ANY_MESSAGE, ext_hook=_refuse_extension)
