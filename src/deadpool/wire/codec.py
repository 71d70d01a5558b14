"""Messages to bytes and back, with their frames.

`encode` and `decode`: Messages to bytes and back: msgpack, written and read by msgspec. The format cannot carry
code.

Only the classes that `protocol.messages.ALL` lists are made from bytes, with fields of the types that they declare.
A core may therefore trust the types of its inputs. Everything else is a WireError, which ends the link it came from
and nothing more. msgspec takes memory for what has arrived, not for a length that is only claimed.

A message without its last fields is read as if they had their defaults, which its sender could have written as well.

`Framer`: where one message ends and the next begins: a four-byte length before each, bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Union

import msgspec

from deadpool.errors import WireError
from deadpool.protocol import messages
from deadpool.protocol.identity import FreeFormMessage, Message

_PLAIN = (bool, int, float, str, bytes)
_PLAIN_EXACTLY = frozenset({type(None), *_PLAIN})


def encode(message: Message) -> bytes:
    if not isinstance(message, Message):
        raise WireError(f"a {type(message).__name__} cannot travel")
    if isinstance(message, FreeFormMessage):
        _check_plain(msgspec.structs.astuple(message))
    return _ENCODER.encode(message)


def decode(data: bytes) -> Message:
    try:
        message: Message = _DECODER.decode(data)
        if isinstance(message, FreeFormMessage):
            _check_plain(msgspec.structs.astuple(message))
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"{len(data)} bytes are not a message: {error}") from error
    return message


def _check_plain(value: object) -> None:
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


def _to_plain(value: object) -> Any:
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


_LENGTH = struct.Struct("!I")
LIMIT_BYTES = 64 * 1024 * 1024


def frame(payload: bytes) -> bytes:
    if len(payload) > LIMIT_BYTES:
        raise WireError(f"a message of {len(payload)} bytes is over the limit of {LIMIT_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


class Framer:
    """Bytes in as they come, whole payloads out. Room is taken for what has come, not for what was announced."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def in_progress(self) -> bool:
        """A frame has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        if not self._buffer and _is_one_frame(data):
            yield data[_LENGTH.size :]  # as most messages come
            return
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > LIMIT_BYTES:
                raise WireError(f"a peer announced {length} bytes; the limit is {LIMIT_BYTES}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield payload


def _is_one_frame(data: bytes) -> bool:
    return _LENGTH.size < len(data) <= LIMIT_BYTES and _LENGTH.unpack_from(data)[0] == len(data) - _LENGTH.size
