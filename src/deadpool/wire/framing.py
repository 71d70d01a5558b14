"""Where one message ends and the next begins: a four-byte length before each, bounded."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from deadpool.errors import WireError

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
