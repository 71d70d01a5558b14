"""What an agent and its NIXL process say to each other. Both are of one version and one machine.

Each message is one datagram of a socket pair, and a `Map` comes with the descriptor of its memory.
"""

from __future__ import annotations

import msgspec


class Map(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    segment: int
    size: int


class Unmap(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    segment: int


class Read(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    number: int
    metadata: bytes
    address: int
    size: int
    segment: int
    offset: int


class Serve(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A window was shown: another process is about to read."""


class AskAlive(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    pass


ToProcess = Map | Unmap | Read | Serve | AskAlive


class Ready(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The library works."""


class Broken(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The library does not work, and the process ends."""

    reason: str


class Mapped(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    segment: int
    address: int
    metadata: bytes


class NotMapped(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    segment: int
    reason: str


class ReadEnded(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    number: int
    failure: str = ""  # empty: all bytes are there
    begun: bool = False  # it failed after it had begun, so some of it may still be under way


class IsAlive(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    pass


FromProcess = Ready | Broken | Mapped | NotMapped | ReadEnded | IsAlive

LIMIT_BYTES = 1 << 17
METADATA_LIMIT_BYTES = 60 << 10
"""A frame of the data plane takes a little more."""
encode = msgspec.msgpack.encode
decode_order = msgspec.msgpack.Decoder(ToProcess).decode
decode_answer = msgspec.msgpack.Decoder(FromProcess).decode
