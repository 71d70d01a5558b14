"""Loads a snapshot's bulk from a slot into live memory, in chunks and in the order of the slot, so that what has
arrived can be loaded while the rest is on its way. Only the main thread may use it.

Bytes that are loaded before the snapshot was verified may be wrong. They are kept only if they came from the attempt
that succeeded in the end; otherwise they are loaded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from deadpool.protocol.seal import Geometry
from deadpool.snapshot.arena.slot import Progress
from deadpool.snapshot.copying.moves import Array, Moves, make_moves
from deadpool.snapshot.record.layout import BulkRegion, TensorEntry
from deadpool.snapshot.state.objects import Key

CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class LoadChunk:
    region: BulkRegion
    start: int  # offset in its region
    end: int
    device: torch.device
    moves: Moves

    @property
    def nbytes(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class _Track:
    """The chunks of one region in their order, and how many of them were loaded from which attempt."""

    chunks: list[LoadChunk] = field(default_factory=list)
    attempt: int = 0
    count: int = 0

    def restart(self, attempt: int) -> None:
        if attempt != self.attempt:
            self.attempt, self.count = attempt, 0


class SlotLoad:
    def __init__(self, chunks: Iterable[LoadChunk], load: Callable[[torch.device, Moves], None]) -> None:
        self._load = load
        self._tracks: dict[BulkRegion, _Track] = {"unique": _Track(), "replica": _Track()}
        for chunk in chunks:
            self._tracks[chunk.region].chunks.append(chunk)

    def advance(self, progress: Progress) -> bool:
        """Loads one chunk if one has arrived, and returns whether it did."""
        for region, track in self._tracks.items():
            arrived = progress.read(region)
            track.restart(arrived.attempt)
            if track.count < len(track.chunks) and track.chunks[track.count].end <= arrived.leading_bytes:
                chunk = track.chunks[track.count]
                self._load(chunk.device, chunk.moves)
                track.count += 1
                return True
        return False

    def finish(self, progress: Progress | None = None) -> int:
        """Loads all chunks that were not loaded from the attempt that was verified. Returns how many bytes were."""
        early_bytes, rest = 0, dict[torch.device, Moves]()
        for region, track in self._tracks.items():
            if progress is not None:
                track.restart(progress.read(region).attempt)
            early_bytes += sum(chunk.nbytes for chunk in track.chunks[: track.count])
            for chunk in track.chunks[track.count :]:
                _add(rest.setdefault(chunk.device, Moves()), chunk.moves)
        for device, moves in rest.items():
            self._load(device, moves)
        return early_bytes


def make_chunks(
    entries: Iterable[TensorEntry], live: Mapping[Key, Tensor], whole: Array, geometry: Geometry
) -> list[LoadChunk]:
    """Divides all copies between a slot and live memory into chunks."""
    moves = make_moves(entries, live, whole, geometry, limit_bytes=CHUNK_BYTES)
    chunks: list[LoadChunk] = []
    for chunk in sorted(_each(moves, whole, geometry), key=lambda each: (each.region, each.start)):
        last = chunks[-1] if chunks else None
        if last is not None and _belongs(last, chunk):
            _add(last.moves, chunk.moves)
            chunks[-1] = replace(last, end=chunk.end)
        else:
            chunks.append(chunk)
    return chunks


def _each(moves: dict[torch.device, Moves], whole: Array, geometry: Geometry) -> Iterator[LoadChunk]:
    for device, of_device in moves.items():
        for move in of_device.single:
            yield _chunk(device, Moves(single=[move]), move.stored, whole, geometry)
        for run in of_device.runs:
            yield _chunk(device, Moves(runs=[run]), run.stored, whole, geometry)


def _chunk(device: torch.device, moves: Moves, stored: Array, whole: Array, geometry: Geometry) -> LoadChunk:
    place = int(stored.ctypes.data - whole.ctypes.data)
    region: BulkRegion = "replica" if place >= geometry.offset("replica") else "unique"
    start = place - geometry.offset(region)
    return LoadChunk(region, start, start + stored.nbytes, device, moves)


def _belongs(last: LoadChunk, chunk: LoadChunk) -> bool:
    return (last.region, last.device) == (chunk.region, chunk.device) and chunk.end - last.start <= CHUNK_BYTES


def _add(to: Moves, moves: Moves) -> None:
    to.single.extend(moves.single)
    to.runs.extend(moves.runs)
