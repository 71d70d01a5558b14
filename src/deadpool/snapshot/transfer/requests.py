"""What a transfer client is asked to do: one value per snapshot that is pushed or pulled."""

from __future__ import annotations

from dataclasses import dataclass

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.seal import Digest, Geometry, Region, Seal
from deadpool.snapshot.erasure.contribution import Contribution
from deadpool.snapshot.transfer.channel import TransferAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    """A sealed slot of this node that a holder is to store. The slot must not change before the push has ended."""

    address: TransferAddress  # of the holder
    generation: Generation
    seal: Seal
    geometry: Geometry
    fd: int  # of the segment that the slot lies in
    slot_offset: int  # in that segment
    full: bool  # with the replica region


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributeRequest:
    """A sealed slot of this node that a member of its group is to add to its parity, as far as that is concerned.

    As with a push, the slot must not change before the contribution has ended.
    """

    address: TransferAddress  # of the node that keeps the parity
    generation: Generation
    contribution: Contribution
    geometry: Geometry  # of the slot
    fd: int  # of the segment that the slot lies in
    slot_offset: int  # in that segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """Regions of a snapshot that another node has, and the slot that they are to be written into."""

    address: TransferAddress  # of the source
    generation: Generation
    rank: int
    version: Version
    regions: tuple[Region, ...]
    digest: Digest  # that the regions must have, whatever the source says
    geometry: Geometry
    into: memoryview
