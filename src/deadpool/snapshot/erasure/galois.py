"""The code itself: arithmetic in GF(2^8), the coefficients of parity blocks, and how lost blocks follow from others.

The field is that of RAID 6 and of ISA-L (polynomial 0x11d). A parity block j of a stripe is the sum over its data
members of coefficient(j, member) * block. The first parity is a plain XOR. With two parities the second has powers of
two, as in RAID 6; with more, the coefficients are a Cauchy matrix whose columns are scaled so that its first row is 1.
Every square part of these matrices can be inverted, so any k blocks of a stripe give all others
(tests/snapshot/test_galois.py tries each part, up to the limits of protocol/coding.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from deadpool.errors import TransferError

_POLYNOMIAL = 0x11D


def _powers_of_two() -> tuple[int, ...]:
    powers, value = [], 1
    for _ in range(255):
        powers.append(value)
        value = value << 1 ^ (_POLYNOMIAL if value & 0x80 else 0)
    return tuple(powers)


_EXP = _powers_of_two()
_LOG = {value: exponent for exponent, value in enumerate(_EXP)}


@dataclass(frozen=True, slots=True, order=True)
class DataBlock:
    """The pieces that one member of a group has in a stripe."""

    member: int


@dataclass(frozen=True, slots=True, order=True)
class ParityBlock:
    """One of the parities of a stripe, counted from 0."""

    index: int


Block = DataBlock | ParityBlock
Weights = dict[Block, int]
"""A block as a sum of others: coefficient by block. Coefficients of 0 are left out."""


def multiply(a: int, b: int) -> int:
    return _EXP[(_LOG[a] + _LOG[b]) % 255] if a and b else 0


def invert(a: int) -> int:
    if a == 0:
        raise ZeroDivisionError("0 has no inverse")
    return _EXP[-_LOG[a] % 255]


def coefficient(parities: int, index: int, member: int) -> int:
    """What a member's blocks are multiplied by in parity `index` of a scheme with so many parities."""
    if index == 0:
        return 1
    if parities <= 2:
        return _EXP[member]
    return multiply(_cauchy(index, member), invert(_cauchy(0, member)))


def _cauchy(index: int, member: int) -> int:
    return invert((255 - index) ^ member)


def weights(wanted: Block, parities: int, data: Sequence[int], available: Collection[Block]) -> Weights:
    """Returns the wanted block of a stripe as a sum of available blocks; TransferError if they are too few.

    `data` names the members whose blocks the stripe's parities sum up. Data blocks are used before parities, and
    parities in their order: the first is the cheapest.
    """
    if wanted in available:
        return {wanted: 1}
    missing = [member for member in data if DataBlock(member) not in available]
    present = [member for member in data if DataBlock(member) in available]
    used = sorted(block.index for block in available if isinstance(block, ParityBlock))[: len(missing)]
    if len(used) < len(missing):
        raise TransferError(f"{len(present) + len(used)} blocks are left where {len(data)} are needed")
    inverse = _inverse([[coefficient(parities, index, member) for member in missing] for index in used])
    lost = {member: _lost_block(row, used, parities, present) for member, row in zip(missing, inverse, strict=True)}
    if isinstance(wanted, DataBlock):
        return lost[wanted.member]
    result: Weights = {}
    for member in data:
        scale = coefficient(parities, wanted.index, member)
        _add(result, lost.get(member, {DataBlock(member): 1}), scale)
    return result


def _lost_block(row: Sequence[int], used: Sequence[int], parities: int, present: Sequence[int]) -> Weights:
    """`row` says how the lost block follows from the used parities, less what present members put into them."""
    result: Weights = {}
    for scale, index in zip(row, used, strict=True):
        _add(result, {ParityBlock(index): 1}, scale)
        _add(result, {DataBlock(member): coefficient(parities, index, member) for member in present}, scale)
    return result


def _add(total: Weights, more: Weights, scale: int) -> None:
    for block, weight in more.items():
        value = total.pop(block, 0) ^ multiply(weight, scale)
        if value:
            total[block] = value


def _inverse(matrix: list[list[int]]) -> list[list[int]]:
    """Inverts a matrix by Gauss and Jordan. The matrices are as large as the number of lost members."""
    size = len(matrix)
    rows = [[*row, *(int(column == number) for column in range(size))] for number, row in enumerate(matrix)]
    for column in range(size):
        pivot = next((number for number in range(column, size) if rows[number][column]), None)
        if pivot is None:
            raise ZeroDivisionError("the matrix cannot be inverted")
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = invert(rows[column][column])
        rows[column] = [multiply(value, scale) for value in rows[column]]
        for number in range(size):
            factor = rows[number][column]
            if number != column and factor:
                rows[number] = [a ^ multiply(factor, b) for a, b in zip(rows[number], rows[column], strict=True)]
    return [row[size:] for row in rows]
