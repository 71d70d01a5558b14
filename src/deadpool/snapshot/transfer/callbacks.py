"""The calls that a transfer server makes to its agent: the server moves bytes, the agent decides what they are for.

The server's connection threads make these calls, possibly several at once. A callback must not wait for the server:
neither fence() nor close() returns before the callbacks have returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deadpool.errors import WireError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Geometry, Seal
from deadpool.snapshot.transfer.arrival import Arrival
from deadpool.snapshot.transfer.connection import Connection
from deadpool.snapshot.transfer.frames import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRefused:
    """The agent refuses to store a snapshot. `reason` says more, for people, where there is more to say."""

    refusal: Refusal
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCopy:
    """A sealed slot that may be read. The arena owns the descriptor, which stays open as long as peers may read it."""

    fd: int
    offset: int
    seal: Seal
    geometry: Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """open      returns a slot for a snapshot that a peer wants to store here. It is laid out by `geometry` and long
              enough for what comes: all regions if seal.full, else geometry.without_replica() is enough.
    stored    is called when the snapshot is in its slot and verified, and its header is written.
    dropped   is called when the snapshot did not arrive whole: its writers have ended, there is no header, and the
              slot is free again.
    find      returns the slot of a snapshot that a peer wants to fetch.
    """

    open: Callable[[Seal, Generation, Geometry], memoryview | TransferRefused]
    stored: Callable[[Seal], None]
    dropped: Callable[[Seal, str], None]
    find: Callable[[int, Version], FoundCopy | None]


class JointFrames:
    """What a connection serves of joint copies: nothing. A feature that makes them derives its own, one for each
    connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def accept(self, packed: list[Any], frame: Frame, forget: Callable[[], None]) -> Arrival | None:
        """CONTRIBUTE: returns what arrives for a joint copy of this node, or None if it was refused."""
        raise self._unexpected(frame)

    def describe(self, frame: Frame) -> None:
        """DESCRIBE: says what a joint copy was made of."""
        raise self._unexpected(frame)

    def read(self, frame: Frame) -> None:
        """READ_ROW: sends a part of a joint copy."""
        raise self._unexpected(frame)

    def _unexpected(self, frame: Frame) -> WireError:
        return WireError(
            f"{self._connection.peer}: {frame.head.kind.name} is served by a feature that is not installed"
        )
