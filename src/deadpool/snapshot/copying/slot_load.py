"""Loads a snapshot's bulk from a slot into live memory, in portions and in the order of the slot, so that what has
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
from deadpool.snapshot.arena.progress import Progress
from deadpool.snapshot.copying.moves import Array, Moves, make_moves
from deadpool.snapshot.record.layout import BulkRegion, TensorEntry
from deadpool.snapshot.state.objects import Key

PORTION_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
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
    """The portions of one region in their order, and how many of them were loaded from which attempt."""

    portions: list[Portion] = field(default_factory=list)
    attempt: int = 0
    count: int = 0

    def restart(self, attempt: int) -> None:
        if attempt != self.attempt:
            self.attempt, self.count = attempt, 0


class SlotLoad:
    def __init__(self, portions: Iterable[Portion], load: Callable[[torch.device, Moves], None]) -> None:
        self._load = load
        self._tracks: dict[BulkRegion, _Track] = {"unique": _Track(), "replica": _Track()}
        for portion in portions:
            self._tracks[portion.region].portions.append(portion)

    def advance(self, progress: Progress) -> bool:
        """Loads one portion if one has arrived, and returns whether it did."""
        for region, track in self._tracks.items():
            arrived = progress.read(region)
            track.restart(arrived.attempt)
            if track.count < len(track.portions) and track.portions[track.count].end <= arrived.leading_bytes:
                portion = track.portions[track.count]
                self._load(portion.device, portion.moves)
                track.count += 1
                return True
        return False

    def finish(self, progress: Progress | None = None) -> int:
        """Loads all portions that were not loaded from the attempt that was verified. Returns how many bytes were."""
        early_bytes, rest = 0, dict[torch.device, Moves]()
        for region, track in self._tracks.items():
            if progress is not None:
                track.restart(progress.read(region).attempt)
            early_bytes += sum(portion.nbytes for portion in track.portions[: track.count])
            for portion in track.portions[track.count :]:
                _add(rest.setdefault(portion.device, Moves()), portion.moves)
        for device, moves in rest.items():
            self._load(device, moves)
        return early_bytes


def make_portions(
    entries: Iterable[TensorEntry], live: Mapping[Key, Tensor], whole: Array, geometry: Geometry
) -> list[Portion]:
    """Divides all copies between a slot and live memory into portions."""
    moves = make_moves(entries, live, whole, geometry, limit_bytes=PORTION_BYTES)
    portions: list[Portion] = []
    for portion in sorted(_each(moves, whole, geometry), key=lambda each: (each.region, each.start)):
        last = portions[-1] if portions else None
        if last is not None and _belongs(last, portion):
            _add(last.moves, portion.moves)
            portions[-1] = replace(last, end=portion.end)
        else:
            portions.append(portion)
    return portions


def _each(moves: dict[torch.device, Moves], whole: Array, geometry: Geometry) -> Iterator[Portion]:
    for device, of_device in moves.items():
        for piece in of_device.pieces:
            yield _portion(device, Moves(pieces=[piece]), piece.stored, whole, geometry)
        for run in of_device.runs:
            yield _portion(device, Moves(runs=[run]), run.stored, whole, geometry)


def _portion(device: torch.device, moves: Moves, stored: Array, whole: Array, geometry: Geometry) -> Portion:
    place = int(stored.ctypes.data - whole.ctypes.data)
    region: BulkRegion = "replica" if place >= geometry.offset("replica") else "unique"
    start = place - geometry.offset(region)
    return Portion(region, start, start + stored.nbytes, device, moves)


def _belongs(last: Portion, portion: Portion) -> bool:
    return (last.region, last.device) == (portion.region, portion.device) and portion.end - last.start <= PORTION_BYTES


def _add(to: Moves, moves: Moves) -> None:
    to.pieces.extend(moves.pieces)
    to.runs.extend(moves.runs)
