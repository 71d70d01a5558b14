"""What a CUDA lane copies: batches of addresses, in turns, and small tensors that are gathered on the device first.

Small tensors are gathered by one call per run of tensors, into a staging buffer from which one copy takes them. All
other copies are lists of addresses, which are planned once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from deadpool.snapshot.copying.cuda import Addresses, Clones
from deadpool.snapshot.copying.moves import CopyPiece, TensorRun


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Many small tensors and their places in a staging buffer."""

    staged: list[Tensor]
    live: list[Tensor]
    odd: list[tuple[Tensor, Tensor]]  # (staged, live) of tensors that are not contiguous


@dataclass(frozen=True, slots=True, eq=False)
class CudaBatch:
    gathers: list[Gather]
    turns: list[Addresses]
    strided: list[tuple[Tensor, Tensor]]  # (stored, live) of large tensors that are not contiguous: torch copies them
    nbytes: int
    clones: Clones | None = None  # what is copied instead of live memory


def gathered(run: TensorRun, staging: Tensor) -> Gather:
    gather, start = Gather([], [], []), 0
    for piece in run.pieces:
        count = piece.live.numel()
        place = staging[start : start + count]
        start += count
        if piece.live.is_contiguous():
            gather.staged.append(place)
            gather.live.append(piece.live.view(-1))
        else:
            gather.odd.append((place.view(piece.live.shape), piece.live))
    return gather


def fill(targets: list[Tensor], sources: list[Tensor], odd: list[tuple[Tensor, Tensor]]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)
    for target, source in odd:
        target.copy_(source)


def cut_batches(
    pieces: list[CopyPiece], gathers: list[Gather], batch_bytes: int, turn_bytes: int
) -> Iterator[CudaBatch]:
    """Puts gathers into the first batch, so that every copy from a staging buffer follows them on the stream."""
    ordered = sorted(pieces, key=lambda piece: piece.nbytes)
    for together in _groups(ordered, batch_bytes):
        yield _batch(together, gathers, turn_bytes)
        gathers = []


def _batch(pieces: list[CopyPiece], gathers: list[Gather], turn_bytes: int) -> CudaBatch:
    plain = [piece for piece in pieces if piece.live.is_contiguous()]
    strided = [(torch.from_numpy(piece.stored), piece.live) for piece in pieces if not piece.live.is_contiguous()]
    registered = bool(plain) and torch.from_numpy(plain[0].stored).is_pinned()
    turns = [addresses_of(together, registered=registered) for together in _groups(plain, turn_bytes)]
    return CudaBatch(gathers, turns, strided, sum(piece.nbytes for piece in pieces))


def addresses_of(pieces: list[CopyPiece], *, registered: bool) -> Addresses:
    moves = [(piece.stored.ctypes.data, piece.live.data_ptr(), piece.nbytes) for piece in pieces]
    return Addresses.of(moves, registered=registered)


def _groups(pieces: list[CopyPiece], limit_bytes: int) -> Iterator[list[CopyPiece]]:
    """Cuts the list where a group would be larger than the limit."""
    together, size = list[CopyPiece](), 0
    for piece in pieces:
        if together and size + piece.nbytes > limit_bytes:
            yield together
            together, size = [], 0
        together.append(piece)
        size += piece.nbytes
    if together:
        yield together
