"""What the cores are told besides messages: what their shells in control/ have observed. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from deadpool.protocol.causes import Checkpoint, Refusal
from deadpool.protocol.health import HealthSample
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import AgentMessage, Copy, OrderMessage, SlotRef, TrainerMessage
from deadpool.protocol.schemes import RankGroup, Scheme
from deadpool.protocol.seal import Digest

# --- inputs of the coordinator ---------------------------------------------------------------------------------------


class FromAgent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A Struct, as `ToAgent` is: there are thousands of both in one recovery, and a dataclass takes a microsecond."""

    node: str
    message: AgentMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLost:
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureInput:
    """What only an optional feature has a use for. Cores hand it to the features, and nothing follows where that
    feature is missing."""


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
class CheckpointAsked(FeatureInput):
    """A person wants a durable checkpoint as soon as there is a newer version to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditAsked:
    """A person wants a recovery to be played for each kind of rank, and what is computed again to be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAuditAsked(FeatureInput):
    """A person wants one of the next steps to be computed twice, and compared."""

    position: int | None = None  # whose ranks a spare is to compute too


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFound(FeatureInput):
    """There is a complete checkpoint in the store that this job may go back to, or begin from."""

    checkpoint: Checkpoint


CoordinatorNews = LinkLost | Tick | Stalled | StopAsked | DrainAsked | SchemeAsked | AuditAsked | FeatureInput
"""All but what agents say."""

CoordinatorInput = FromAgent | CoordinatorNews

# --- inputs of the agent ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFound:
    """There is a link to a process that may be the coordinator, and a Join with the agent's footing was sent."""

    patience: float = 1.0  # for a welcome, as a multiple of the usual silence


@dataclass(frozen=True, slots=True, kw_only=True)
class FromCoordinator:
    term: int
    message: OrderMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorLost:
    """The link has ended, and the shell looks for another coordinator."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FromTrainer:
    trainer: str
    message: TrainerMessage


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
class MemorySeen:
    """What the shell has found of the node's memory: the tightest of all limits, and what is left."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSampled(FeatureInput):
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
    seconds: float = 0.0  # that it was on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class PushFailed:
    """`refusal` is None where the holder has not answered: it is gone, or too slow."""

    rank: int
    version: Version
    node: str
    refusal: Refusal | None
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
    fallback: str = ""  # the name of the kept version that could not be read


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
    group: RankGroup | None = None


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
class SourceDamaged:
    """The bytes that this node sent are not what the rank had sealed."""

    node: str
    rank: int
    version: Version
    group: RankGroup | None = None  # else it is the parity that this rank's node keeps for the group


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenOut:
    """`failure` is empty if all copies were written."""

    ranks: tuple[int, ...]
    folder: str
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged(FeatureInput):
    """The copies of a checkpoint are in memory of their own, or could not be put there: the slots are no longer
    read."""

    name: str
    slots: tuple[SlotRef, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWritten(FeatureInput):
    """`failure` is empty if this node's part of the checkpoint is in the store."""

    name: str
    bytes_written: int
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFinished(FeatureInput):
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
class LeaseTaken(FeatureInput):
    """This node's machine serves this job and no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedElsewhere(FeatureInput):
    """This node's machine serves another job. Found when the lease was asked for, or at a look from time to time."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedWorkEnded(FeatureInput):
    """The command and all its children are gone. `killed`: how many processes had to be ended by SIGKILL."""

    code: int
    took_s: float = 0.0  # from the request to stop it; 0: it ended by itself
    killed: int = 0


DataInput = (
    Allocated | AllocationFailed | Hashed | Pushed | PushFailed | Fetched | FetchFailed | StreamsCut | Offered
    | Received | ReceiveFailed | SourceDamaged | WrittenOut
)  # fmt: skip
"""What the data plane has done, and what other nodes ask of it."""

AgentInput = (
    CoordinatorFound | FromCoordinator | CoordinatorLost | FromTrainer | TrainerExited | TrainerActivity | Tick
    | Stalled | StopAsked | PeersProbed | LeaveAsked | MemorySeen | FeatureInput
    | DataInput
)  # fmt: skip
