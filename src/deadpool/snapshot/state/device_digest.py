"""Digests of tensors in the memory of a device: computed there, in one pass over their bytes.

A tensor is read as rows of ROW_BYTES. Each row is multiplied with a fixed matrix of small integers, which leaves 16
sums of 32 bits: a matrix product of bytes, through which every byte goes once. These sums, a 128th of the data, are
added up with weights of 64 bits, and so are the rows. All of it is integer arithmetic: it is exact, in whatever order
numbers are added, and a product of matrices is the one operation of torch that weighs bytes without writing as many.

    one byte is another one    always shows: the weights are chosen so (`_matrix`)
    two bytes change places    no two places of a row have equal weights, nor have two rows
    anything else              fails to show by chance only

Bytes are compared, not values: a sign of zero and the payload of a NaN count. Two devices give the same digest, however
they compute it. The digest of a tensor in host memory is another one.

Each operation on a device costs the host some microseconds, whatever its size: so tensors are gathered where they are
small, and what follows the products is done for many tensors at once.

`digest_all`: the digests of tensors that are all there. It waits once.
`begin` and `finish`: the same where tensors come one by one and change later. `begin` waits for nothing, and keeps a
copy of what is too little for a product of its own.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROW_BYTES = 8192
_SUMS = 16  # of each row: with 8 of them an H200 is slower
_LEAST_ROWS = 17  # torch multiplies no fewer
_ALIGNED_BYTES = 16  # elsewhere a product is half as fast, or impossible
_PIECE_BYTES = 1 << 30  # at once
_COPIED_BYTES = 64 << 20  # at once, of a tensor that is not aligned
_GATHERED_BYTES = 16 << 20  # what is smaller is copied together with others: that takes as long, and fewer operations
_GROUP_BYTES = 256 << 20  # of memory for a group of tensors
_ROWS_AT_ONCE = 1024  # without a product of matrices four times their bytes are needed for a moment
_SPREAD = 0x9E3779B97F4A7C15
_MIX = 0xBF58476D1CE4E5B9
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Begun:
    """What is known of one tensor, on its device."""

    nbytes: int
    sums: tuple[Tensor, ...]  # of rows, in their order
    rest: Tensor  # the bytes behind them

    @property
    def device(self) -> torch.device:
        return self.rest.device

    @property
    def group_bytes(self) -> int:
        return self.rest.nbytes + 2 * sum(each.nbytes for each in self.sums)


def begin(tensor: Tensor) -> Begun:
    return _begin(tensor, _LEAST_ROWS * ROW_BYTES, copies=True)


def finish(begun: Sequence[Begun]) -> list[int]:
    """All of one device."""
    return _read([_total(begun)], [each.nbytes for each in begun]) if begun else []


def digest_all(tensors: Iterable[Tensor]) -> list[int]:
    """All of one device."""
    totals, sizes, group, group_bytes = list[Tensor](), list[int](), list[Begun](), 0
    for each in tensors:
        group.append(_begin(each, _GATHERED_BYTES, copies=False))
        sizes.append(group[-1].nbytes)
        group_bytes += group[-1].group_bytes
        if group_bytes >= _GROUP_BYTES:
            totals.append(_total(group))
            group, group_bytes = [], 0
    if group:
        totals.append(_total(group))
    return _read(totals, sizes)


def _begin(tensor: Tensor, least_bytes: int, *, copies: bool) -> Begun:
    with torch.no_grad():
        data = _bytes_of(tensor)
        size = data.numel()
        whole = size - size % ROW_BYTES if size >= least_bytes else 0
        sums = tuple(_sum(piece.view(-1, ROW_BYTES)) for piece in _pieces(data[:whole]))
        rest = data[whole:] if whole < size else data.new_empty(0)
        return Begun(nbytes=size, sums=sums, rest=rest.clone() if copies and whole < size else rest)


def _total(begun: Sequence[Begun]) -> Tensor:
    """Returns one number for each tensor."""
    with torch.no_grad():
        rests = _sum_rests(begun)
        counts = [sum(map(len, each.sums)) + len(rest) for each, rest in zip(begun, rests, strict=True)]
        sums = [part for each, rest in zip(begun, rests, strict=True) for part in (*each.sums, rest)]
        return _sum_tensors(torch.cat(sums), counts)


def _read(totals: list[Tensor], sizes: list[int]) -> list[int]:
    """Waits for the device."""
    found = torch.cat(totals).tolist() if totals else []
    return [(total + _SPREAD * size) & _MASK for total, size in zip(found, sizes, strict=True)]


def _bytes_of(tensor: Tensor) -> Tensor:
    """The elements in row-major order."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    return plain.reshape(-1).view(torch.int8)


def _pieces(data: Tensor) -> list[Tensor]:
    """The last one has enough rows too."""
    if not data.numel():
        return []
    aligned = data.data_ptr() % _ALIGNED_BYTES == 0
    most, least = _PIECE_BYTES if aligned else _COPIED_BYTES, _LEAST_ROWS * ROW_BYTES
    found = list(data.split(most))
    if len(found) > 1 and found[-1].numel() < least:
        found[-2:] = [data[(len(found) - 2) * most :]]
    return found if aligned else [piece.clone() for piece in found]


# --- rows -------------------------------------------------------------------------------------------------------------


def _sum(rows: Tensor) -> Tensor:
    """Returns 16 sums of each row, as 8 numbers of 64 bits."""
    multiply = _multiply if _can_multiply(rows.device) else _multiply_slowly
    return multiply(rows, _matrix(rows.device)).view(torch.int64)


def _multiply(rows: Tensor, matrix: Tensor) -> Tensor:
    product: Tensor = torch._int_mm(rows, matrix.t())
    return product


def _multiply_slowly(rows: Tensor, matrix: Tensor) -> Tensor:
    """The same on a device that multiplies no matrices of bytes, or with a torch that does not."""
    few = rows.split(_ROWS_AT_ONCE)
    sums = [torch.stack([(each * weights.int()).sum(1, dtype=torch.int32) for weights in matrix], 1) for each in few]
    return torch.cat(sums)


@functools.cache
def _can_multiply(device: torch.device) -> bool:
    """Tries it, since no property of a device says whether it can."""
    probe = torch.arange(_LEAST_ROWS * ROW_BYTES, device=device).to(torch.int8).view(-1, ROW_BYTES)
    try:
        found = _multiply(probe, _matrix(device))
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(found, _multiply_slowly(probe, _matrix(device)))


@functools.cache
def _matrix(device: torch.device) -> Tensor:
    """Returns 16 weights for each place in a row. The first of them is even and not 0, and the others are odd. So a
    byte that changes by d changes eight numbers of 64 bits by d times seven odd numbers and one even number, up to
    multiples of 2**32: and their sum with odd weights by d times an odd number, which is not 0 modulo 2**64."""
    drawn = bytearray(hashlib.shake_256(b"digests of tensors on a device").digest(_SUMS * ROW_BYTES))
    weights = torch.frombuffer(drawn, dtype=torch.int8).view(_SUMS, ROW_BYTES).bitwise_or(1)
    weights[0] = weights[0].bitwise_xor(1).bitwise_or(2)
    return weights.to(device)


# --- tensors ----------------------------------------------------------------------------------------------------------


def _sum_rests(begun: Sequence[Begun]) -> list[Tensor]:
    """The sums of what was too little, filled up with zeros. One product does for all tensors."""
    counts = [-(-each.rest.numel() // ROW_BYTES) for each in begun]
    count = sum(counts)
    if not count:
        return [each.rest.new_empty(0, _SUMS // 2, dtype=torch.int64) for each in begun]
    staged = torch.zeros(max(_LEAST_ROWS, count), ROW_BYTES, dtype=torch.int8, device=begun[0].device)
    rooms = staged[:count].split(counts)
    some = [(room.view(-1)[: each.rest.numel()], each.rest) for room, each in zip(rooms, begun, strict=True)]
    some = [(room, rest) for room, rest in some if rest.numel()]
    torch._foreach_copy_([room for room, _ in some], [rest for _, rest in some])
    return list(_sum(staged)[:count].split(counts))


def _sum_tensors(sums: Tensor, counts: list[int]) -> Tensor:
    """Returns one number for each tensor. It is a difference of running totals: where a script asks torch for what is
    deterministic, torch refuses to add by index."""
    device = sums.device
    rows = (sums * _odd_weights(torch.arange(1, 1 + sums.shape[1], device=device))).sum(1)
    count = torch.tensor(counts, device=device)
    ends = count.cumsum(0)
    starts = ends - count
    place = torch.arange(len(rows), device=device) - starts.repeat_interleave(count, output_size=len(rows))
    totals = torch.cat([rows.new_zeros(1), (rows * _odd_weights(place + (1 << 32))).cumsum(0)])
    return totals[ends] - totals[starts]


def _odd_weights(places: Tensor) -> Tensor:
    """One odd number of 64 bits for each place, unlike those of its neighbours in about half of the bits."""
    mixed = places * _signed(_SPREAD)
    mixed = (mixed ^ (mixed >> 30)) * _signed(_MIX)
    return (mixed ^ (mixed >> 27)) | 1


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
