"""The calls that a transfer server makes to its agent: the server moves bytes, the agent decides what they are for.

The server's connection threads make these calls, possibly several at once. A callback must not wait for the server:
neither fence() nor close() returns before the callbacks have returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deadpool.protocol.causes import Refusal
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Geometry, Seal
from deadpool.snapshot.erasure.parity_slot import Contribution, ParitySlot
from deadpool.snapshot.transfer.parity_frames import ParityName


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRefused:
    """The agent refuses to store a snapshot. `reason` says more, for people, where there is more to say."""

    refusal: Refusal
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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
    find: Callable[[int, Version], Found | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundParity:
    """A sealed parity that may be read, and where its slot lies. The descriptor is the arena's, as that of Found."""

    fd: int
    offset: int
    slot: ParitySlot


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityCallbacks:
    """open         returns the parity that a member of a group wants to add to. Its digests are those of its seal.
    contributed  is called when everything of that member is in.
    dropped      is called when not everything came: its writers have ended, and what has come stays added.
    find         returns a parity that a peer wants to read.
    """

    open: Callable[[Contribution, Generation], ParitySlot | TransferRefused]
    contributed: Callable[[Contribution], None]
    dropped: Callable[[Contribution, str], None]
    find: Callable[[ParityName], FoundParity | None]


NO_PARITIES = ParityCallbacks(
    open=lambda contribution, generation: TransferRefused(refusal=Refusal.OTHER_GROUP),
    contributed=lambda contribution: None,
    dropped=lambda contribution, reason: None,
    find=lambda name: None,
)
