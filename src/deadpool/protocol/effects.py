"""The inputs of the cores besides messages, and their effects. Values only; the shells in control/ act on them.

An input says what was observed, an effect says what to do. A core never waits: an effect that takes time comes back
later as an input (HashSlot -> Hashed, PushCopy -> Pushed or PushFailed, ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from deadpool.events import Event
from deadpool.protocol.checkpoint import Checkpoint
from deadpool.protocol.coding import CodingGroup, Scheme
from deadpool.protocol.health import HealthSample
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import Copy, Fetch, Holder, Peer, SlotRef
from deadpool.protocol.seal import Digest, Geometry

# --- inputs of the coordinator ---------------------------------------------------------------------------------------


class FromAgent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A Struct, as `ToAgent` is: there are thousands of both in one recovery, and a dataclass takes a microsecond."""

    node: str
    message: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLost:
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: deadlines are checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """This process itself did not run for so long: its deadlines for other processes move by as much."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """A person or a launcher wants the job to end."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """A person, or a watch over slow nodes, wants this node to hand over its ranks and leave."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeAsked:
    """A person wants snapshots to be protected in another way. None: the job is to choose again, within its bounds."""

    scheme: Scheme | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAsked:
    """A person wants a durable checkpoint as soon as there is a newer version to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFound:
    """There is a complete checkpoint in the store that this job may go back to, or begin from."""

    checkpoint: Checkpoint


CoordinatorInput = (
    FromAgent | LinkLost | Tick | Stalled | StopAsked | DrainAsked | SchemeAsked | CheckpointAsked | CheckpointFound
)  # fmt: skip

# --- inputs of the agent ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFound:
    """There is a link to a process that may be the coordinator, and a Join with the agent's footing was sent."""

    patience: float = 1.0  # for a welcome, as a multiple of the usual silence


@dataclass(frozen=True, slots=True, kw_only=True)
class FromCoordinator:
    term: int
    message: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorLost:
    """The link has ended, and the shell looks for another coordinator."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FromTrainer:
    trainer: str
    message: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerExited:
    trainer: str
    code: int
    reason: str


class Activity(Enum):
    """What the kernel says of a process and its children."""

    ACTIVE = "active"  # one of them computes, reads, writes, or waits for a disk
    IDLE = "idle"  # all of them wait; the main thread for another thread, perhaps one that waits for another rank
    OUTSIDE = "outside"  # all of them wait; the main thread for a timer, a connection or a process: a slow service?
    STOPPED = "stopped"  # by a signal: it does nothing until another signal lets it go on


WAITS = (Activity.IDLE, Activity.OUTSIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerActivity:
    """Observed whenever it changes. A trainer of which nothing was observed yet counts as active."""

    trainer: str
    activity: Activity


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSampled:
    """The shell has looked at the sources of the node's health."""

    sample: HealthSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    segment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationFailed:
    segment: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    slot: SlotRef
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    rank: int
    version: Version
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PushFailed:
    rank: int
    version: Version
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    rank: int
    slot: SlotRef
    copy: Copy


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    rank: int
    slot: SlotRef
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsCut:
    """Every stream of an older generation is closed and its writer has ended."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Another node wants to store a copy here, or with `group` to contribute to the parity that this node keeps for it;
    answered by AcceptOffer or RefuseOffer."""

    offer: int
    generation: Generation
    copy: Copy
    group: CodingGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    slot: SlotRef
    copy: Copy
    bytes_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveFailed:
    slot: SlotRef
    reason: str
    rank: int = -1  # of the contribution, where the slot is that of a parity


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpoilt:
    """The bytes that this node sent are not what the rank had sealed."""

    node: str
    rank: int
    version: Version
    group: CodingGroup | None = None  # else it is the parity that this rank's node keeps for the group


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenOut:
    """`failure` is empty if all copies were written."""

    ranks: tuple[int, ...]
    folder: str
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The copies of a checkpoint are in memory of their own, or could not be put there: the slots are no longer
    read."""

    name: str
    slots: tuple[SlotRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWritten:
    """`failure` is empty if this node's part of the checkpoint is in the store."""

    name: str
    bytes_written: int
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFinished:
    """`failure` is empty if the checkpoint is complete in the store."""

    name: str
    bytes_written: int
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersProbed:
    number: int
    unreachable: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAsked:
    """The system, or a person, wants this node's agent to end, and gives it time to hand over its ranks."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTaken:
    """This node's machine serves this job and no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedElsewhere:
    """This node's machine serves another job. Found when the lease was asked for, or at a look from time to time."""

    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedWorkEnded:
    """The command and all its children are gone. `killed`: how many processes had to be ended by SIGKILL."""

    code: int
    took_s: float = 0.0  # from the request to stop it; 0: it ended by itself
    killed: int = 0


AgentInput = (
    CoordinatorFound | FromCoordinator | CoordinatorLost | FromTrainer | TrainerExited | TrainerActivity | Allocated
    | AllocationFailed | Hashed | Pushed | PushFailed | Fetched | FetchFailed | StreamsCut | Offered | Received
    | ReceiveFailed | Tick | Stalled | StopAsked | SourceSpoilt | WrittenOut | PeersProbed
    | LeaveAsked | HealthSampled | Staged | PartWritten | CheckpointFinished | LeaseTaken | LeasedElsewhere
    | ParkedWorkEnded
)  # fmt: skip

# --- effects ---------------------------------------------------------------------------------------------------------


class ToAgent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    node: str
    term: int
    message: Any


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
    reason: str


CoordinatorEffect = ToAgent | Drop | Emit | Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCoordinator:
    message: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LookElsewhere:
    """Close the link to this coordinator and try the next one."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTrainer:
    """`segment`: the file descriptor of this segment travels with the message."""

    trainer: str
    message: Any
    segment: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrainer:
    trainer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTrainer:
    trainer: str
    reason: str


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
class PushCopy:
    slot: SlotRef
    copy: Copy
    holder: Holder
    generation: Generation
    full: bool
    group: CodingGroup | None = None  # only the pieces for the parity of member `target` are sent
    target: int = 0


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
class ParityTarget:
    """What a slot of parity is for. The geometries are of all members but this one, in their order: the slot has room
    for snapshots as large."""

    group: CodingGroup
    member: int
    version: Version
    geometries: tuple[Geometry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptOffer:
    offer: int
    slot: SlotRef
    parity: ParityTarget | None = None
    rank: int = -1  # of the contribution
    fresh: bool = False  # the first contribution to this parity: what was in the slot is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseOffer:
    offer: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOut:
    """Write sealed copies into files, for people."""

    copies: tuple[tuple[SlotRef, Copy], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePart:
    """Copy these slots into memory of their own (comes back as Staged), then write them to the store (PartWritten).
    Each comes with what small collectives gave the rank. A fence cuts the first short, and not the second."""

    name: str
    generation: Generation
    copies: tuple[tuple[SlotRef, Copy, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCheckpoint:
    """Write metadata and manifest; comes back as CheckpointFinished."""

    name: str
    number: int
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWriter:
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


AgentEffect = (
    ToCoordinator | LookElsewhere | ToTrainer | StartTrainer | KillTrainer | Allocate | ReleaseSegment | HashSlot
    | WriteSeal | PushCopy | FetchCopy | CutStreams | AcceptOffer | RefuseOffer | WriteOut
    | ProbePeers | WritePart | CompleteCheckpoint | EndWriter | TakeLease | ReleaseLease
    | StartParkedWork | StopParkedWork | Emit | Finish
)  # fmt: skip


# --- deadlines -------------------------------------------------------------------------------------------------------


def earliest(one: float | None, other: float | None) -> float | None:
    """When a core wants to be woken, of two times each of which may never come."""
    if one is None or other is None:
        return other if one is None else one
    return one if one < other else other
