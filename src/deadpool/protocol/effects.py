"""What the cores want done. Values only; the shells in control/ act on them.

A core never waits: an effect that takes time comes back later as an input (HashSlot -> Hashed, PushCopy -> Pushed or
PushFailed, ...).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from deadpool.events.event import Event
from deadpool.protocol.causes import EndCause, Refusal
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import (
    AgentMessage,
    AskCode,
    CodeFile,
    Copy,
    Fetch,
    Holder,
    OrderMessage,
    Peer,
    SlotRef,
    ToTrainerMessage,
)
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Geometry

# --- effects ---------------------------------------------------------------------------------------------------------


class ToAgent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    node: str
    term: int
    message: OrderMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Close the link to a node that is no longer part of the job."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The process is done."""

    failed: bool
    cause: EndCause
    reason: str


CoordinatorEffect = ToAgent | Drop | Emit | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCoordinator:
    message: AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class LookElsewhere:
    """Close the link to this coordinator and try the next one."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTrainer:
    """`segment`: the file descriptor of this segment travels with the message."""

    trainer: str
    message: ToTrainerMessage
    segment: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrainer:
    trainer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTrainer:
    trainer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportModules:
    """Trainers that are started from some moment on find these modules imported, if that can be done without a trace.
    Nothing comes back."""

    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    segment: int
    geometry: Geometry
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSegment:
    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HashSlot:
    slot: SlotRef
    geometry: Geometry
    record_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSeal:
    slot: SlotRef
    copy: Copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Bytes of a sealed slot go to another node, which has verified them before they count. It is PushCopy or
    Contribute."""

    slot: SlotRef
    copy: Copy
    holder: Holder
    generation: Generation
    full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCopy(Push):
    """The other node stores the copy as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribute(Push):
    """The other node is a member of the rank's group. It gets only what it needs, and adds that to its joint copy."""

    group: RankGroup
    target: int  # which member it is


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCopy:
    slot: SlotRef
    rank: int
    fetch: Fetch
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStreams:
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTarget:
    """What a slot of a joint copy is for. The geometries are of all members but this one, in their order: the slot has
    room for snapshots as large."""

    group: RankGroup
    member: int
    version: Version
    geometries: tuple[Geometry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptOffer:
    offer: int
    slot: SlotRef
    joint: JointTarget | None = None
    rank: int = -1  # of the contribution
    fresh: bool = False  # the first contribution to this joint copy: what was in the slot is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseOffer:
    """`reason` says more, for people, where there is more to say."""

    offer: int
    refusal: Refusal
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOut:
    """Write sealed copies into files, for people."""

    copies: tuple[tuple[SlotRef, Copy], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureEffect:
    """What only an optional feature wants done. The feature's part of the data plane does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCode(FeatureEffect):
    """Find out which of these files of compiled code there are; comes back as CodeIndexed."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindMissingCode(FeatureEffect):
    """Find out which of these this node lacks and may have; comes back as CodeMissing."""

    digest: bytes
    machine: str
    files: tuple[CodeFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCode(FeatureEffect):
    """Read a chunk of a file; comes back as CodeRead."""

    ask: AskCode


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCode(FeatureEffect):
    """Write a chunk. With the last one the file gets its name, if it is what was listed. Comes back as CodeWritten."""

    digest: bytes
    file: CodeFile
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePart(FeatureEffect):
    """Copy these slots into memory of their own (comes back as Staged), then write them to the store (PartWritten).
    Each comes with what small collectives gave the rank. A fence cuts the first short, and not the second."""

    name: str
    generation: Generation
    copies: tuple[tuple[SlotRef, Copy, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoint(FeatureEffect):
    """Write metadata and manifest; comes back as CheckpointFinished."""

    name: str
    number: int
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWriter(FeatureEffect):
    """End what still writes to the checkpoint of that name. Nothing comes back."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePeers:
    """Try to reach each of them; comes back as PeersProbed."""

    number: int
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLease:
    """Lock this node's machine for this job; comes back as LeaseTaken or LeasedElsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLease:
    """Another job may take the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartParkedWork:
    """Start the command that runs while the machine is parked; comes back as ParkedWorkEnded."""

    start: int  # counts from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StopParkedWork:
    """End it and all its children: SIGTERM, then SIGKILL. Nothing waits for that."""


DataEffect = (
    Allocate | ReleaseSegment | HashSlot | WriteSeal | PushCopy | Contribute | FetchCopy | CutStreams | AcceptOffer
    | RefuseOffer | WriteOut | FeatureEffect
)  # fmt: skip
"""The effects on snapshots, for the data plane."""

AgentEffect = (
    ToCoordinator | LookElsewhere | ToTrainer | StartTrainer | KillTrainer | ProbePeers | TakeLease | ReleaseLease
    | StartParkedWork | StopParkedWork | ImportModules | Emit | Finish | DataEffect
)  # fmt: skip


# --- deadlines -------------------------------------------------------------------------------------------------------


def earliest(one: float | None, other: float | None) -> float | None:
    """When a core wants to be woken, of two times each of which may never come."""
    if one is None or other is None:
        return other if one is None else one
    return one if one < other else other
