"""The manifest of a checkpoint, and what is read and asked by it.

`Manifest`: the manifest of a checkpoint: what it contains, with checksums. It is written last, so its presence means
complete.

It is JSON for people and programs. Its own checksum is among its fields, so a torn manifest is none.

What an agent asks of its writer process, as bytes. Values only; no torch.

Reads a checkpoint back without torch: a rank's regions into a slot, and all that a coordinator has to know of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import xxhash

from deadpool.durable.rate import CHUNK_BYTES
from deadpool.durable.shards import (
    PartFile,
    TensorShard,
    data_path,
    decode_part,
    identity,
    part_path,
    record_path,
    recording_path,
)
from deadpool.durable.store import Store
from deadpool.errors import CopyDamaged, StateError
from deadpool.protocol.causes import Checkpoint
from deadpool.protocol.messages import Copy
from deadpool.protocol.seal import DAMAGED, REGIONS, Geometry, digest_of, extent_of
from deadpool.snapshot.arena.checksums import checksum, digest_region
from deadpool.snapshot.arena.slot import pack_seal, region, unpack_seal

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    name: str
    job: str
    step: int
    positions: int
    per_node: int
    written_at: float
    torch: str
    files: dict[str, tuple[int, str]]  # by path in the checkpoint: size, checksum
    copies: tuple[Copy, ...] = field(repr=False)  # one per rank, in order

    @property
    def total_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def encode_manifest(manifest: Manifest) -> bytes:
    body = asdict(manifest) | {"format": FORMAT, "copies": [_from_copy(copy) for copy in manifest.copies]}
    body["checksum"] = _checksum(body)
    return json.dumps(body, indent=1, sort_keys=True).encode()


def decode_manifest(data: bytes) -> Manifest | None:
    """None: torn, damaged, or of another format."""
    try:
        body = json.loads(data)
        claimed = body.pop("checksum")
        if claimed != _checksum(body) or body.pop("format") != FORMAT:
            return None
        body["files"] = {path: (size, digest) for path, (size, digest) in body["files"].items()}
        return Manifest(**body | {"copies": tuple(map(_to_copy, body["copies"]))})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def read_manifest(store: Store, name: str) -> Manifest | None:
    """None: there is no complete checkpoint of this name."""
    try:
        manifest = decode_manifest(store.read(f"{name}/{MANIFEST}"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return manifest if manifest is not None and manifest.name == name else None


def complete_ones(store: Store) -> list[Manifest]:
    """Newest step first; of equal steps the one written last."""
    found = [manifest for name in store.folders() if (manifest := read_manifest(store, name)) is not None]
    return sorted(found, key=lambda manifest: (manifest.step, manifest.written_at), reverse=True)


def hex_of(digest: int) -> str:
    return f"{digest:016x}"


def _checksum(body: dict[str, Any]) -> str:
    return hex_of(checksum(json.dumps(body, sort_keys=True).encode()))


def _from_copy(copy: Copy) -> dict[str, Any]:
    geometry = copy.geometry
    return {
        "seal": pack_seal(copy.seal).hex(),
        "geometry": [geometry.record_capacity, geometry.unique_bytes, geometry.replica_bytes],
        "peers": list(copy.peers),
    }


def _to_copy(fields: dict[str, Any]) -> Copy:
    seal = unpack_seal(bytes.fromhex(fields["seal"]))
    if seal is None:
        raise ValueError("a seal is damaged")
    record, unique, replica = fields["geometry"]
    geometry = Geometry(record_capacity=record, unique_bytes=unique, replica_bytes=replica)
    return Copy(seal=seal, geometry=geometry, peers=tuple(fields["peers"]))


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


Put = Callable[[int, memoryview], None]
"""Writes bytes at a place in the slot. It raises if the slot is not to be written any more."""


def newest_checkpoint(store: Store, *, job: str | None = None) -> Manifest | None:
    """Returns the newest complete checkpoint, and only one of this job if a job is named."""
    return next((each for each in complete_ones(store) if job is None or each.job == job), None)


def as_checkpoint(store: Store, manifest: Manifest) -> Checkpoint:
    recordings = tuple(store.read(f"{manifest.name}/{recording_path(copy.seal.rank)}") for copy in manifest.copies)
    return Checkpoint(name=manifest.name, number=manifest.step, copies=manifest.copies, recordings=recordings)


def what_is_missing(store: Store, name: str, files: Mapping[str, tuple[int, str]]) -> str | None:
    """The first file that is gone or has another size; None: all are there. No file is opened. Errors of the store are
    raised: they say nothing about this checkpoint."""
    sizes = store.sizes(name, files)
    for path, (size, _) in sorted(files.items()):
        if path not in sizes:
            return f"{path} is missing"
        if sizes[path] != size:
            return f"{path} has {sizes[path]} bytes instead of {size}"
    return None


def load_rank(store: Store, name: str, copy: Copy, slot: memoryview, put: Put) -> None:
    """Fills the slot by `put` and checks it against the seal. OSError, StateError, CopyDamaged: it cannot be had."""
    rank, geometry, extent = copy.seal.rank, copy.geometry, copy.seal.extent
    part = _read_part(store, name, rank)
    put(geometry.offset("record"), memoryview(store.read(f"{name}/{record_path(rank)}")))
    for file, shards in _by_file(store, name, part):
        with store.open(f"{name}/{file}") as stream:
            for shard, at in shards:
                assert shard.region, shard  # what lies in the boundary record is not looked for in files
                start = geometry.offset(shard.region) + shard.offset
                stream.seek(at)
                for done in range(0, shard.nbytes, CHUNK_BYTES):
                    wanted = min(CHUNK_BYTES, shard.nbytes - done)
                    data = stream.read(wanted)
                    if len(data) != wanted:
                        raise StateError(f"{name}/{file} is too short for {shard.name}")
                    put(start + done, memoryview(data))
    for each in REGIONS:
        if extent_of(extent, each) and digest_region(region(slot, geometry, extent, each)) != digest_of(
            copy.seal.digest, each
        ):
            raise CopyDamaged(f"{name}: region {each!r} of rank {rank} is {DAMAGED}")


def _by_file(store: Store, name: str, part: PartFile) -> Iterator[tuple[str, list[tuple[TensorShard, int]]]]:
    """The rank's shards by the file that has them, in the order of that file."""
    by_writer: dict[int, list[TensorShard]] = {}
    for shard in part.shards:
        if shard.nbytes and shard.region:
            by_writer.setdefault(shard.writer, []).append(shard)
    for writer, shards in sorted(by_writer.items()):
        found = (part if writer == part.rank else _read_part(store, name, writer)).found()
        places = []
        for shard in shards:
            there = found.get(identity(shard))
            if there is None or there.at is None:
                raise StateError(f"{name}: {shard.name} of rank {part.rank} is not in the file of rank {writer}")
            places.append((shard, there.at[2]))
        yield data_path(writer), sorted(places, key=lambda place: place[1])


def _read_part(store: Store, name: str, rank: int) -> PartFile:
    return decode_part(store.read(f"{name}/{part_path(rank)}"))


def faults_of(store: Store, manifest: Manifest) -> list[str]:
    """What differs from the manifest; empty: every byte is as it was written."""
    return [
        f"{path}: {fault}"
        for path, facts in sorted(manifest.files.items())
        if (fault := _fault(store, f"{manifest.name}/{path}", facts)) is not None
    ]


def _fault(store: Store, path: str, facts: tuple[int, str]) -> str | None:
    hasher, size = xxhash.xxh3_64(), 0
    try:
        with store.open(path) as file:
            while data := file.read(CHUNK_BYTES):
                hasher.update(data)
                size += len(data)
    except OSError as error:
        return f"cannot be read ({error})"
    if size != facts[0]:
        return f"has {size} bytes instead of {facts[0]}"
    return None if hasher.hexdigest() == facts[1] else "does not match its checksum"
