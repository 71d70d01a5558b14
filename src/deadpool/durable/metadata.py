"""Makes the `.metadata` of torch.distributed.checkpoint from the parts of all ranks, and checks that they fit together.

Where ranks have different tensors of one name, as pipeline stages that count their layers from 0 have, each name gets
the lowest rank that it is of: `model.0.weight@rank4`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from deadpool.durable.shards import PartFile, TensorShard, identity
from deadpool.errors import StateError
from deadpool.snapshot.record.tensors import dtype_from_name

METADATA = ".metadata"
Written = tuple[PartFile, TensorShard]


def encode_metadata(parts: Iterable[PartFile]) -> bytes:
    """StateError: some tensor is in no part, or two ranks that should have the same one do not."""
    parts = list(parts)
    _require_all_written(parts)
    metadata = Metadata(state_dict_metadata={}, planner_data={}, storage_data={})
    for name, written in tensors_by_name(parts):
        _add(metadata, name, written)
    return pickle.dumps(metadata)


def _require_all_written(parts: list[PartFile]) -> None:
    found = {part.rank: part.found() for part in parts}
    for part in parts:
        for shard in part.shards:
            there = found.get(shard.writer, {}).get(identity(shard))
            if there is None:
                raise StateError(
                    f"{shard.name} of rank {part.rank} was to be written by rank {shard.writer}, and was not"
                )
            if there.digest != shard.digest:
                raise StateError(
                    f"{shard.name} counts as the same on ranks {part.rank} and {shard.writer}, and is not: correct "
                    "protect(replicated=...)"
                )


def tensors_by_name(parts: list[PartFile]) -> Iterable[tuple[str, list[Written]]]:
    """All chunks of each tensor, under the name that it gets."""
    tensors: dict[str, dict[tuple[int, ...], list[Written]]] = {}
    for part in parts:
        for shard in part.found().values():
            if shard.nbytes or 0 in shard.whole:
                tensors.setdefault(shard.name, {}).setdefault(shard.sharing, []).append((part, shard))
    for name, by_ranks in sorted(tensors.items()):
        different = _different(by_ranks)
        for index, (ranks, written) in enumerate(different):
            keeps_name = len(different) == 1 or (index == 0 and written[0][1].kind == "buffer")
            yield (name if keeps_name else f"{name}@rank{ranks[0]}"), written


def _different(by_ranks: dict[tuple[int, ...], list[Written]]) -> list[tuple[tuple[int, ...], list[Written]]]:
    """Tensors of one name that differ. What is equal was written more than once, because it was not known to be."""
    seen: set[Any] = set()
    result = []
    for ranks, written in sorted(by_ranks.items()):
        content = tuple(sorted((shard.start, shard.whole, shard.dtype, shard.digest) for _, shard in written))
        if content not in seen:
            seen.add(content)
            result.append((ranks, written))
    return result


def _add(metadata: Metadata, name: str, written: list[Written]) -> None:
    chunks: dict[tuple[int, ...], Written] = {}
    for part, shard in written:
        chunks.setdefault(shard.start, (part, shard))
    first = written[0][1]
    metadata.state_dict_metadata[name] = TensorStorageMetadata(
        properties=TensorProperties(dtype=dtype_from_name(first.dtype)),
        size=torch.Size(first.whole),
        chunks=[ChunkStorageMetadata(torch.Size(shard.start), torch.Size(shard.shape)) for _, shard in chunks.values()],
    )
    metadata.planner_data[name] = _path(name)
    for index, (start, (part, shard)) in enumerate(chunks.items()):
        assert shard.at is not None
        item, length, _ = shard.at
        metadata.storage_data[MetadataIndex(name, start, index)] = _StorageInfo(part.file, item, length)


def _path(name: str) -> tuple[str, ...]:
    """Splits a name into keys of nested dicts: the keyword of protect(), then the name; of an optimizer's state also
    what it is.
    """
    keyword, _, rest = name.partition(".")
    if rest.startswith("state."):
        of, _, state_key = rest.removeprefix("state.").rpartition(".")
        return keyword, "state", of, state_key
    return keyword, rest
