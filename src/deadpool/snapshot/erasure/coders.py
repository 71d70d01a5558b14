"""Two back ends that add blocks to parities: ISA-L, if its library is there, and numpy. Both give the same bytes.

ISA-L comes from the system (Debian's libisal2) or from inside the wheel of pyeclib. Both back ends give up the GIL, so
the agent's other threads go on meanwhile. The first use chooses, and the agent says once which one it is.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from deadpool.snapshot.erasure.galois import multiply

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
