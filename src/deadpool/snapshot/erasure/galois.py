"""The code of erasure coding, and the libraries that compute it.

`DataBlock` and `ParityBlock`: the code itself: arithmetic in GF(2^8), the coefficients of parity blocks, and how
lost blocks follow from others.

The field is that of RAID 6 and of ISA-L (polynomial 0x11d). A parity block j of a stripe is the sum over its data
members of coefficient(j, member) * block. The first parity is a plain XOR. With two parities the second has powers
of two, as in RAID 6; with more, the coefficients are a Cauchy matrix whose columns are scaled so that its first row
is 1. Every square part of these matrices can be inverted, so any k blocks of a stripe give all others
(tests/snapshot/test_galois.py tries each part, up to the limits of protocol/schemes.py).

Two back ends that add blocks to parities: ISA-L, if its library is there, and numpy. Both give the same bytes.

ISA-L comes from the system (Debian's libisal2) or from inside the wheel of pyeclib. Both back ends give up the GIL,
so the agent's other threads go on meanwhile. The first use chooses, and the agent says once which one it is.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

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


Buffer = memoryview | bytearray | bytes

_SYSTEM_LIBRARY = "libisal.so.2"
_TABLE_BYTES = 32  # that ISA-L expands one coefficient into
_WORDS_AT_ONCE = 1 << 15  # so that what numpy has looked up is still in the cache when it is added


class Coder(Protocol):
    name: str
    is_fast: bool

    def fold(self, parity: memoryview, coefficient: int, piece: Buffer) -> None:
        """Adds coefficient * piece to the first bytes of `parity`, in place. A piece is never longer than that."""


class IsalCoder:
    is_fast = True

    def __init__(self, library: str) -> None:
        """OSError if there is no such library, AttributeError if it lacks a function."""
        self.name = f"ISA-L ({library})"
        loaded = ctypes.CDLL(library)  # a call through CDLL gives up the GIL, one through PyDLL would not
        self._init_tables, self._update = loaded.ec_init_tables, loaded.ec_encode_data_update
        self._init_tables.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p]
        self._update.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int] + [ctypes.c_void_p] * 3
        self._init_tables.restype = self._update.restype = None
        self._tables = functools.lru_cache(maxsize=256)(self._make_tables)

    def fold(self, parity: memoryview, coefficient: int, piece: Buffer) -> None:
        source, target = np.frombuffer(piece, np.uint8), np.frombuffer(parity, np.uint8)
        assert len(source) <= len(target) and target.flags.writeable
        targets = (ctypes.c_void_p * 1)(target.ctypes.data)
        if len(source):
            self._update(len(source), 1, 1, 0, self._tables(coefficient), source.ctypes.data, targets)

    def _make_tables(self, coefficient: int) -> ctypes.Array[ctypes.c_ubyte]:
        tables = (ctypes.c_ubyte * _TABLE_BYTES)()
        self._init_tables(1, 1, bytes([coefficient]), tables)
        return tables


class NumpyCoder:
    """Looks products up, two bytes at a time; a coefficient of 1 needs no product."""

    name = "numpy"
    is_fast = False

    def fold(self, parity: memoryview, coefficient: int, piece: Buffer) -> None:
        source = np.frombuffer(piece, np.uint8)
        target = np.frombuffer(parity, np.uint8)[: len(source)]
        assert len(source) == len(target) and target.flags.writeable
        if coefficient == 1:
            np.bitwise_xor(target, source, out=target)
            return
        even = len(source) // 2 * 2
        self._fold_words(target[:even].view(np.uint16), coefficient, source[:even].view(np.uint16))
        for last in range(even, len(source)):
            target[last] ^= multiply(coefficient, int(source[last]))

    def _fold_words(self, target: np.ndarray, coefficient: int, source: np.ndarray) -> None:
        products = _word_products(coefficient)
        looked_up = np.empty(min(_WORDS_AT_ONCE, len(source)), np.uint16)
        for start in range(0, len(source), _WORDS_AT_ONCE):
            part = source[start : start + _WORDS_AT_ONCE]
            out = looked_up[: len(part)]
            np.take(products, part, out=out, mode="clip")  # "clip" avoids a copy of `out`; no index is out of range
            np.bitwise_xor(target[start : start + len(part)], out, out=target[start : start + len(part)])


@functools.lru_cache(maxsize=256)
def _word_products(coefficient: int) -> np.ndarray:
    """The products of all pairs of bytes: a word's bytes are multiplied independently."""
    products = np.array([multiply(coefficient, byte) for byte in range(256)], np.uint16)
    return (products[:, None] << 8 | products[None, :]).ravel()


def clear(view: memoryview) -> None:
    np.frombuffer(view, np.uint8).fill(0)


def libraries() -> Iterator[str]:
    """Where ISA-L may be, best first."""
    yield _SYSTEM_LIBRARY
    wheel = importlib.util.find_spec("pyeclib")
    if wheel is not None and wheel.origin is not None:
        yield from map(str, sorted(Path(wheel.origin).parent.with_name("pyeclib.libs").glob("libisal*.so*")))


def choose(candidates: Iterable[str]) -> Coder:
    """Returns the first library that works, else numpy."""
    for library in candidates:
        try:
            coder = IsalCoder(library)
        except (OSError, AttributeError):
            continue
        if _computes_rightly(coder):
            return coder
    return NumpyCoder()


@functools.lru_cache(maxsize=1)
def chosen_coder() -> Coder:
    """The back end of this process."""
    return choose(libraries())


def _computes_rightly(coder: Coder) -> bool:
    """Codes every byte with some coefficients: a library of another field would make parities that nobody can use."""
    piece = bytes(range(256))
    for coefficient in (1, 2, 0x8E, 0xFF):
        parity = bytearray(256)
        coder.fold(memoryview(parity), coefficient, piece)
        if parity != bytes(multiply(coefficient, byte) for byte in piece):
            return False
    return True
