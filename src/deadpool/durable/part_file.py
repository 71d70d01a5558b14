"""Writes one rank's part of a checkpoint: the tensors that this rank has to write, and the records of exact resumption.

Tensors are written as torch.distributed.checkpoint writes them: each is an archive of torch.save, one after the other
in one file. The bytes lie in such an archive as they are, and the part says where, so that they can be read without
torch.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deadpool.durable.rate import CheckedWriter, RateLimit
from deadpool.durable.shards import (
    PartFile,
    TensorShard,
    data_path,
    encode_part,
    part_path,
    record_path,
    recording_path,
    share_out,
)
from deadpool.durable.store import Store
from deadpool.errors import StateError
from deadpool.protocol.messages import Copy
from deadpool.protocol.seal import DAMAGED, REGIONS, Region, digest_of
from deadpool.snapshot.arena.checksums import digest_region
from deadpool.snapshot.arena.slot import region
from deadpool.snapshot.record.layout import SlotLayout, TensorEntry, decode_layout, split_record
from deadpool.snapshot.record.placement import plain_name
from deadpool.snapshot.record.record import decode
from deadpool.snapshot.record.tensors import dtype_name, to_bytes

_LOCAL_HEADER_BYTES = 30  # of a zip file, before the name


class PartWriter:
    def __init__(self, store: Store, name: str, limit: RateLimit) -> None:
        self._store, self._name, self._limit = store, name, limit

    def write(self, copy: Copy, slot: memoryview, recording: bytes) -> int:
        """Returns how many bytes were written."""
        rank, extent = copy.seal.rank, copy.seal.extent
        regions = {each: region(slot, copy.geometry, extent, each) for each in REGIONS}
        for each, data in regions.items():
            if digest_region(data) != digest_of(copy.seal.digest, each):
                raise StateError(f"region {each!r} of rank {rank} is {DAMAGED}")
        record = bytes(regions["record"])
        encoded_layout, host = split_record(record)
        files: dict[str, tuple[int, str]] = {}
        shards = self._write_tensors(rank, decode_layout(encoded_layout), regions, host_buffers(host["module"]), files)
        self._write_file(record_path(rank), record, files)
        self._write_file(recording_path(rank), recording, files)
        part = PartFile(rank=rank, file=data_path(rank), shards=tuple(shards), files=dict(files))
        self._write_file(part_path(rank), encode_part(part), files)
        return sum(size for size, _ in files.values())

    def _write_tensors(
        self,
        rank: int,
        layout: SlotLayout,
        regions: dict[Region, memoryview],
        buffers: dict[str, Tensor],
        files: dict[str, tuple[int, str]],
    ) -> list[TensorShard]:
        writers = _writers(layout)
        with self._store.writing(f"{self._name}/{data_path(rank)}") as file:
            out = CheckedWriter(file, self._limit)
            shards = [
                self._write_tensor(rank, layout, entry, writers[entry.key], regions[entry.region], out)
                for entry in layout.entries
            ]
            shards += [_write_buffer(rank, name, buffer, out) for name, buffer in buffers.items()]
        files[data_path(rank)] = out.facts
        return shards

    def _write_tensor(
        self, rank: int, layout: SlotLayout, entry: TensorEntry, writer: int, whole: memoryview, out: CheckedWriter
    ) -> TensorShard:
        data = whole[entry.offset : entry.offset + entry.nbytes]
        at = None
        if writer == rank:
            archive, inside = _archive(_as_tensor(entry, data), data)
            at = (out.size, len(archive), out.size + inside)
            out.write(archive)
        spec = entry.dtensor_spec
        return TensorShard(
            name=entry.name,
            kind=entry.key[0],
            dtype=dtype_name(entry.dtype),
            whole=tuple(spec[1]) if spec is not None else entry.shape,
            start=entry.start,
            shape=entry.shape,
            region=entry.region,
            offset=entry.offset,
            nbytes=entry.nbytes,
            digest=digest_region(data),
            sharing=layout.ranks[entry.sharing],
            writer=writer,
            at=at,
        )

    def _write_file(self, path: str, data: bytes, files: dict[str, tuple[int, str]]) -> None:
        with self._store.writing(f"{self._name}/{path}") as file:
            out = CheckedWriter(file, self._limit)
            out.write(data)
        files[path] = out.facts


def _writers(layout: SlotLayout) -> dict[Any, int]:
    """The rank that writes each entry."""
    by_ranks: dict[int, list[TensorEntry]] = {}
    for entry in layout.entries:
        by_ranks.setdefault(entry.alike, []).append(entry)
    writers: dict[Any, int] = {}
    for index, entries in by_ranks.items():
        shares = share_out(((entry.name, entry.nbytes) for entry in entries), layout.ranks[index])
        writers |= {entry.key: shares[entry.name] for entry in entries}
    return writers


def host_buffers(modules: dict[str, bytes]) -> dict[str, Tensor]:
    """Buffers in host memory, by name. They are in the boundary record already, and are read from there; but whoever
    loads the checkpoint with plain torch looks for them among the tensors. Sparse ones are only in the record."""
    found: dict[str, Tensor] = {}
    for keyword, data in modules.items():
        parts = decode(data, keyword)
        for path, buffers in parts["buffers"].items():
            for name, buffer in buffers.items():
                if _is_dense(buffer) and name not in parts["passing"].get(path, ()):
                    found[".".join(part for part in (keyword, plain_name(path), name) if part)] = buffer
    return found


def _is_dense(buffer: Tensor | None) -> bool:
    return buffer is not None and buffer.layout == torch.strided


def _write_buffer(rank: int, name: str, buffer: Tensor, out: CheckedWriter) -> TensorShard:
    data = memoryview(to_bytes(buffer))
    archive, inside = _archive(buffer.contiguous(), data)
    at = (out.size, len(archive), out.size + inside)
    out.write(archive)
    shape = tuple(buffer.shape)
    return TensorShard(
        name=name,
        kind="buffer",
        dtype=dtype_name(buffer.dtype),
        whole=shape,
        start=(0,) * len(shape),
        shape=shape,
        region="",
        offset=0,
        nbytes=len(data),
        digest=digest_region(data),
        sharing=(rank,),
        writer=rank,
        at=at,
    )


def _as_tensor(entry: TensorEntry, data: memoryview) -> Tensor:
    if not entry.nbytes:  # a rank whose part of a small tensor is empty
        return torch.empty(entry.shape, dtype=entry.dtype)
    return torch.from_numpy(np.frombuffer(data, np.uint8)).view(entry.dtype).reshape(entry.shape)


def _archive(tensor: Tensor, data: memoryview) -> tuple[memoryview, int]:
    """The tensor as torch.save writes it, and where its bytes begin in that."""
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    archive = buffer.getbuffer()
    if not len(data):
        return archive, 0
    with zipfile.ZipFile(buffer) as file:
        stored = next(info for info in file.infolist() if info.filename.endswith("/data/0"))
    assert stored.compress_type == zipfile.ZIP_STORED and stored.file_size == len(data), stored
    header = archive[stored.header_offset : stored.header_offset + _LOCAL_HEADER_BYTES]
    name_bytes, extra_bytes = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    start = stored.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    assert archive[start : start + len(data)] == data, stored
    return archive, start
