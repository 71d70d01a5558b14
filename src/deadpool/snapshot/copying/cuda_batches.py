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
from deadpool.snapshot.copying.moves import Move, TensorRun


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
    for move in run.moves:
        count = move.live.numel()
        place = staging[start : start + count]
        start += count
        if move.live.is_contiguous():
            gather.staged.append(place)
            gather.live.append(move.live.view(-1))
        else:
            gather.odd.append((place.view(move.live.shape), move.live))
    return gather


def fill(targets: list[Tensor], sources: list[Tensor], odd: list[tuple[Tensor, Tensor]]) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)
    for target, source in odd:
        target.copy_(source)


def cut_batches(moves: list[Move], gathers: list[Gather], batch_bytes: int, turn_bytes: int) -> Iterator[CudaBatch]:
    """Puts gathers into the first batch, so that every copy from a staging buffer follows them on the stream."""
    ordered = sorted(moves, key=lambda move: move.nbytes)
    for together in _groups(ordered, batch_bytes):
        yield _batch(together, gathers, turn_bytes)
        gathers = []


def _batch(moves: list[Move], gathers: list[Gather], turn_bytes: int) -> CudaBatch:
    plain = [move for move in moves if move.live.is_contiguous()]
    strided = [(torch.from_numpy(move.stored), move.live) for move in moves if not move.live.is_contiguous()]
    registered = bool(plain) and torch.from_numpy(plain[0].stored).is_pinned()
    turns = [addresses_of(together, registered=registered) for together in _groups(plain, turn_bytes)]
    return CudaBatch(gathers, turns, strided, sum(move.nbytes for move in moves))


def addresses_of(moves: list[Move], *, registered: bool) -> Addresses:
    copies = [(move.stored.ctypes.data, move.live.data_ptr(), move.nbytes) for move in moves]
    return Addresses.of(copies, registered=registered)


def _groups(moves: list[Move], limit_bytes: int) -> Iterator[list[Move]]:
    """Cuts the list where a group would be larger than the limit."""
    together, size = list[Move](), 0
    for move in moves:
        if together and size + move.nbytes > limit_bytes:
            yield together
            together, size = [], 0
        together.append(move)
        size += move.nbytes
    if together:
        yield together
