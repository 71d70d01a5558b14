"""Durable checkpoints: those that nodes write together, and those that the script has saved itself."""

from __future__ import annotations

from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.inventory_batches import Copy
from deadpool.protocol.structs import Message


class WriteCheckpoint(Message, frozen=True, kw_only=True):
    """Write this node's part of the version, which is committed, to the durable checkpoint of that name."""

    generation: Generation
    name: str
    version: Version


class CheckpointPart(Message, frozen=True, kw_only=True):
    """A node has written its ranks' parts of a checkpoint, or could not. Of no generation: the version was committed
    when the write began, and a recovery does not change that."""

    name: str
    copies: tuple[Copy, ...]
    bytes_written: int
    failure: str = ""


class FinishCheckpoint(Message, frozen=True, kw_only=True):
    """Every node has written its part: write the metadata, then the manifest. `copies` are of all ranks, in order."""

    name: str
    number: int
    copies: tuple[Copy, ...]


class CheckpointDone(Message, frozen=True, kw_only=True):
    """The manifest of a checkpoint is written, so the checkpoint is complete; or it could not be."""

    name: str
    bytes_written: int
    failure: str = ""


class AbandonCheckpoint(Message, frozen=True, kw_only=True):
    """The write takes too long, or another node's part is lost: end it."""

    name: str


class Durable(Message, frozen=True, kw_only=True):
    """The script has saved a checkpoint of its own after so many completed steps, from which the job could be
    restarted. A trainer says it, and its agent repeats it to every coordinator."""

    step: int
    path: str
