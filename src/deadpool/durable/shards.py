"""A rank's part of a checkpoint: its tensors, which of them it wrote itself, and where the bytes are. No torch.

Ranks with the same bytes share the work: each of them computes the same assignment from the names and sizes, without
a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgpack

from deadpool.errors import StateError
from deadpool.protocol.seal import Region

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShard:
    """One tensor of one rank: its local part. `digest` is of its bytes."""

    name: str
    kind: str  # param, state or buffer
    dtype: str
    whole: tuple[int, ...]  # shape of the whole tensor
    start: tuple[int, ...]
    shape: tuple[int, ...]
    region: Region | Literal[""]  # empty: it is in the boundary record
    offset: int  # in the region
    nbytes: int
    digest: int
    sharing: tuple[int, ...]  # ranks that the whole tensor lies on
    writer: int  # the rank that writes it
    at: (
        tuple[int, int, int] | None
    )  # item, length of the item, bytes: places in the writer's file; None: not the writer


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    rank: int
    file: str
    shards: tuple[TensorShard, ...]
    files: dict[str, tuple[int, str]]  # that this rank wrote: size, checksum

    def found(self) -> dict[tuple[str, tuple[int, ...], tuple[int, ...]], TensorShard]:
        """Pieces that this rank wrote, by what identifies them among the ranks that have the same."""
        return {identity(shard): shard for shard in self.shards if shard.at is not None}


def identity(shard: TensorShard) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return shard.name, shard.start, shard.sharing


def part_path(rank: int) -> str:
    return f"deadpool/rank-{rank}.part"


def record_path(rank: int) -> str:
    return f"deadpool/rank-{rank}.record"


def recording_path(rank: int) -> str:
    return f"deadpool/rank-{rank}.recording"


def data_path(rank: int) -> str:
    return f"__{rank}_0.distcp"


def share_out(sizes: Iterable[tuple[str, int]], ranks: tuple[int, ...]) -> dict[str, int]:
    """Which of these ranks writes each of the tensors that all of them have: largest first, to the one with the least
    so far. All ranks come to the same result."""
    load = dict.fromkeys(ranks, 0)
    writers: dict[str, int] = {}
    for name, size in sorted(sizes, key=lambda each: (-each[1], each[0])):
        writer = min(ranks, key=lambda rank: (load[rank], rank))
        load[writer] += size
        writers[name] = writer
    return writers


def encode_part(part: PartFile) -> bytes:
    rows = [
        (*(p.name, p.kind, p.dtype, p.whole, p.start, p.shape, p.region, p.offset, p.nbytes, p.digest), *_place(p))
        for p in part.shards
    ]
    packed: bytes = msgpack.packb([_FORMAT, part.rank, part.file, rows, part.files])
    return packed


def _place(shard: TensorShard) -> tuple[tuple[int, ...], int, tuple[int, int, int] | None]:
    return shard.sharing, shard.writer, shard.at


def decode_part(data: bytes) -> PartFile:
    try:
        number, rank, file, rows, files = msgpack.unpackb(data, use_list=False)
        if number != _FORMAT:
            raise StateError(f"a part of a checkpoint has format {number}, but this version reads format {_FORMAT}")
        return PartFile(rank=rank, file=file, shards=tuple(_shard(row) for row in rows), files=dict(files))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateError(f"this is not a part of a checkpoint ({error})") from error


def _shard(row: tuple[Any, ...]) -> TensorShard:
    name, kind, dtype, whole, start, shape, region, offset, nbytes, digest, sharing, writer, at = row
    return TensorShard(
        name=name,
        kind=kind,
        dtype=dtype,
        whole=whole,
        start=start,
        shape=shape,
        region=region,
        offset=offset,
        nbytes=nbytes,
        digest=digest,
        sharing=sharing,
        writer=writer,
        at=at,
    )
