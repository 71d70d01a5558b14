"""What a transfer server asks of the agent it serves: the one seam between moving bytes and knowing what they mean.

All four are called from the server's connection threads, possibly several at once, and must not wait for the server
(neither fence() nor close() returns before they have).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Geometry, Seal


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A sealed slot that may be read. The descriptor stays the arena's and stays open as long as peers may ask."""

    fd: int
    offset: int
    seal: Seal
    geometry: Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """open      a slot for a snapshot that a peer wants to store here: laid out by `geometry`, and long enough for
              what comes (all regions if seal.full, else geometry.without_replica() is enough)
    stored    the snapshot is in its slot, verified, and the header is written
    dropped   it did not arrive whole; its writers have ended, there is no header, and the slot is free again
    find      the slot of a snapshot that a peer wants to fetch
    """

    open: Callable[[Seal, Generation, Geometry], memoryview | Refused]
    stored: Callable[[Seal], None]
    dropped: Callable[[Seal, str], None]
    find: Callable[[int, Version], Found | None]
