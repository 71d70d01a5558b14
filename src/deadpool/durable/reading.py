"""Reads a checkpoint back without torch: a rank's regions into a slot, and all that a coordinator has to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import xxhash

from deadpool.durable.manifest import Manifest, complete_ones
from deadpool.durable.pieces import (
    Part,
    Piece,
    data_path,
    decode_part,
    identity,
    part_path,
    record_path,
    recording_path,
)
from deadpool.durable.rate import CHUNK_BYTES
from deadpool.durable.store import Store
from deadpool.errors import CopyDamaged, StateError
from deadpool.protocol.checkpoint import Checkpoint
from deadpool.protocol.messages import Copy
from deadpool.protocol.seal import DAMAGED, REGIONS, digest_of, extent_of
from deadpool.snapshot.arena.checksums import digest_region
from deadpool.snapshot.arena.slot import region

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
    for file, pieces in _by_file(store, name, part):
        with store.open(f"{name}/{file}") as stream:
            for piece, at in pieces:
                assert piece.region, piece  # what lies in the boundary record is not looked for in files
                start = geometry.offset(piece.region) + piece.offset
                stream.seek(at)
                for done in range(0, piece.nbytes, CHUNK_BYTES):
                    wanted = min(CHUNK_BYTES, piece.nbytes - done)
                    data = stream.read(wanted)
                    if len(data) != wanted:
                        raise StateError(f"{name}/{file} is too short for {piece.name}")
                    put(start + done, memoryview(data))
    for each in REGIONS:
        if extent_of(extent, each) and digest_region(region(slot, geometry, extent, each)) != digest_of(
            copy.seal.digest, each
        ):
            raise CopyDamaged(f"{name}: region {each!r} of rank {rank} is {DAMAGED}")


def _by_file(store: Store, name: str, part: Part) -> Iterator[tuple[str, list[tuple[Piece, int]]]]:
    """The rank's pieces by the file that has them, in the order of that file."""
    by_writer: dict[int, list[Piece]] = {}
    for piece in part.pieces:
        if piece.nbytes and piece.region:
            by_writer.setdefault(piece.writer, []).append(piece)
    for writer, pieces in sorted(by_writer.items()):
        found = (part if writer == part.rank else _read_part(store, name, writer)).found()
        places = []
        for piece in pieces:
            there = found.get(identity(piece))
            if there is None or there.at is None:
                raise StateError(f"{name}: {piece.name} of rank {part.rank} is not in the file of rank {writer}")
            places.append((piece, there.at[2]))
        yield data_path(writer), sorted(places, key=lambda place: place[1])


def _read_part(store: Store, name: str, rank: int) -> Part:
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
