"""What an agent asks of its writer process, as bytes. Values only; no torch."""

from __future__ import annotations

import msgspec

from deadpool.protocol.messages import Copy


class StagedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's snapshot that was copied out of the arena into memory of its own."""

    fd: int
    copy: Copy
    recording: bytes


class PartTask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    where: str
    name: str
    nice: int
    bytes_per_s: float
    copies: tuple[StagedCopy, ...]


class FinishTask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    where: str
    name: str
    nice: int
    job: str
    step: int
    positions: int
    per_node: int
    keep_last: int
    keep_every: int
    copies: tuple[Copy, ...]  # of all ranks, in order


Task = PartTask | FinishTask
_DECODER: msgspec.msgpack.Decoder[Task] = msgspec.msgpack.Decoder(Task)


def encode_task(task: Task) -> bytes:
    return msgspec.msgpack.encode(task)


def decode_task(data: bytes) -> Task:
    return _DECODER.decode(data)
