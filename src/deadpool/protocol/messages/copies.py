"""Snapshots, their copies, and durable checkpoints.

Snapshots and their copies, in the order of one version: a slot, the capture, the seal, the holders, the permit.

Durable checkpoints: those that nodes write together, and those that the script has saved itself.
"""

from __future__ import annotations

from deadpool.protocol.causes import Miss
from deadpool.protocol.identity import FeatureMessage, Generation, Message, Schedule, Value, Version
from deadpool.protocol.inventory_batches import Copy
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Geometry


class SlotRef(Value, frozen=True, kw_only=True):
    """A slot of the node's arena, by its segment and its place in the segment."""

    segment: int
    index: int


class Declare(Message, frozen=True, kw_only=True):
    """The trainer's state has this geometry from now on, and it wants slots for it."""

    geometry: Geometry
    peers: tuple[int, ...]


class Attach(Message, frozen=True, kw_only=True):
    """A segment of the arena. Its file descriptor travels beside this message."""

    segment: int
    geometry: Geometry
    count: int


class Detach(Message, frozen=True, kw_only=True):
    """The agent has given the segment up. Its memory is free when the trainer has unmapped it too."""

    segment: int


class Grant(Message, frozen=True, kw_only=True):
    """The trainer owns this slot until it says Captured or Missed, or unwinds."""

    generation: Generation
    slot: SlotRef
    rank: int | None = None  # None: the trainer's own; else one that it carries


class Captured(Message, frozen=True, kw_only=True):
    """A snapshot is complete in its slot. The agent owns the slot again and seals it."""

    generation: Generation
    version: Version
    slot: SlotRef
    record_bytes: int
    rank: int | None = None  # None: the trainer's own; else one that it carries


class Missed(Message, frozen=True, kw_only=True):
    """This rank has no copy of a scheduled version and never will."""

    generation: Generation
    rank: int
    number: int
    cause: Miss
    reason: str
    stall_s: float | None = None  # given up for want of time: how long the step would have waited, by estimate


class Sealed(Message, frozen=True, kw_only=True):
    """A rank's own node has checksummed a snapshot and sealed it."""

    generation: Generation
    copy: Copy


class Stored(Message, frozen=True, kw_only=True):
    """A holder has verified and sealed a copy of another node's snapshot."""

    generation: Generation
    rank: int
    version: Version
    bytes_received: int


class Encoded(FeatureMessage, frozen=True, kw_only=True):
    """A member of a coding group has the pieces of all others in its parity of this version, and has sealed it."""

    generation: Generation
    version: Version
    ranks: tuple[int, ...]  # whose pieces are in it
    bytes_received: int


class Permit(Message, frozen=True, kw_only=True):
    """The node keeps `watermark` and every version numbered from `keep_from` on. It may overwrite the rest."""

    generation: Generation
    watermark: Version | None
    keep_from: int
    schedule: Schedule


class Final(Message, frozen=True, kw_only=True):
    """The watermark moved: steps below `number` will never be computed again."""

    number: int


class Reschedule(Message, frozen=True, kw_only=True):
    """Versions from `schedule.start` on are captured by this schedule. A trainer that is already past one of them when
    this arrives says Missed for it."""

    generation: Generation
    schedule: Schedule


class CopyLost(Message, frozen=True, kw_only=True):
    """A copy is damaged: its bytes are not those that were sealed. Trainers and agents say it of their own node's
    copies. The copy counts as lost from here on.

    With `group` it is the parity that the node of this rank keeps for that group. Where groups have changed, the node
    may keep another one of the same version.

    With `dropped` its node has dropped it, and only then is it sent anew: an offer that came before would find it
    stored. A node also says so of a parity that has no room for a snapshot that has grown."""

    generation: Generation
    node: str
    rank: int
    version: Version
    group: RankGroup | None = None
    dropped: bool = False


class WriteCheckpoint(FeatureMessage, frozen=True, kw_only=True):
    """Write this node's part of the version, which is committed, to the durable checkpoint of that name."""

    generation: Generation
    name: str
    version: Version


class CheckpointPart(FeatureMessage, frozen=True, kw_only=True):
    """A node has written its ranks' parts of a checkpoint, or could not. Of no generation: the version was committed
    when the write began, and a recovery does not change that."""

    name: str
    copies: tuple[Copy, ...]
    bytes_written: int
    failure: str = ""


class FinishCheckpoint(FeatureMessage, frozen=True, kw_only=True):
    """Every node has written its part: write the metadata, then the manifest. `copies` are of all ranks, in order."""

    name: str
    number: int
    copies: tuple[Copy, ...]


class CheckpointDone(FeatureMessage, frozen=True, kw_only=True):
    """The manifest of a checkpoint is written, so the checkpoint is complete; or it could not be."""

    name: str
    bytes_written: int
    failure: str = ""


class AbandonCheckpoint(FeatureMessage, frozen=True, kw_only=True):
    """The write takes too long, or another node's part is lost: end it."""

    name: str


class Durable(FeatureMessage, frozen=True, kw_only=True):
    """The script has saved a checkpoint of its own after so many completed steps, from which the job could be
    restarted. A trainer says it, and its agent repeats it to every coordinator."""

    step: int
    path: str
