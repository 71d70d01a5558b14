"""The codecs that compression.py compares. Each takes numbers and the version before, and gives the same bytes back.

A codec works on one thread. `planes` puts the first bytes of all numbers together, then the second ones, and so on: the
exponents of floats are alike, their mantissas are not. `top` compresses only the planes of the exponent, the upper two
bytes of four, or the upper one of two, and leaves the others as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

PACKAGES = ("zstandard", "lz4", "blosc2", "isal", "zlib_ng")
Squeeze = tuple[Callable[[Any], bytes], Callable[[bytes], bytes]]


@dataclass(frozen=True, slots=True)
class Codec:
    name: str
    compress: Callable[[np.ndarray, np.ndarray], Any]
    decompress: Callable[[Any, np.ndarray, np.ndarray], np.ndarray]
    size: Callable[[Any], int] = len


def missing_packages() -> list[str]:
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def _zstd(level: int) -> Squeeze:
    zstandard = importlib.import_module("zstandard")
    return zstandard.ZstdCompressor(level=level).compress, zstandard.ZstdDecompressor().decompress


def _lz4() -> Squeeze:
    frame = importlib.import_module("lz4.frame")
    return frame.compress, frame.decompress


def _igzip(level: int) -> Squeeze:
    igzip = importlib.import_module("isal.isal_zlib")
    return lambda data: igzip.compress(data, level), igzip.decompress


def _zlib_ng(level: int) -> Squeeze:
    zlib_ng = importlib.import_module("zlib_ng.zlib_ng")
    return lambda data: zlib_ng.compress(data, level), zlib_ng.decompress


def _planes(numbers: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, numbers.itemsize).T)


def _numbers(planes: Any, like: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(like.itemsize, -1).T).reshape(-1)


def _plain(name: str, squeeze: Squeeze) -> Codec:
    pack, unpack = squeeze
    return Codec(name, lambda raw, _: pack(raw), lambda packed, *_: np.frombuffer(unpack(packed), np.uint8))


def _by_planes(name: str, squeeze: Squeeze) -> Codec:
    pack, unpack = squeeze
    return Codec(
        f"{name} planes", lambda raw, _: pack(_planes(raw)), lambda packed, like, _: _numbers(unpack(packed), like)
    )


def _top(name: str, squeeze: Squeeze, count: int) -> Codec:
    """Compresses the upper `count` planes of four, half as many of two. The other planes stay as they are."""
    pack, unpack = squeeze

    def split(raw: np.ndarray) -> int:
        return raw.itemsize - max(1, count * raw.itemsize // 4)

    def compress(raw: np.ndarray, _: np.ndarray) -> tuple[np.ndarray, list[bytes]]:
        planes = _planes(raw)
        cut = split(raw)
        return planes[:cut], [pack(np.ascontiguousarray(plane)) for plane in planes[cut:]]

    def decompress(packed: tuple[np.ndarray, list[bytes]], like: np.ndarray, _: np.ndarray) -> np.ndarray:
        upper = [np.frombuffer(unpack(each), np.uint8) for each in packed[1]]
        return np.ascontiguousarray(np.vstack([*packed[0], *upper]).T).reshape(-1)

    return Codec(
        f"{name} top {count}", compress, decompress, lambda packed: packed[0].nbytes + sum(map(len, packed[1]))
    )


def _blosc(codec: str, filter_name: str, *, delta: bool = False) -> Codec:
    blosc2 = importlib.import_module("blosc2")
    blosc2.set_nthreads(1)
    options = {"codec": getattr(blosc2.Codec, codec), "clevel": 1, "nthreads": 1}

    def compress(raw: np.ndarray, last: np.ndarray) -> bytes:
        filters = [getattr(blosc2.Filter, filter_name)]
        return blosc2.compress2(raw ^ last if delta else raw, typesize=raw.itemsize, filters=filters, **options)

    def decompress(packed: bytes, like: np.ndarray, last: np.ndarray) -> np.ndarray:
        numbers = np.frombuffer(blosc2.decompress2(packed, nthreads=1), like.dtype)
        return numbers ^ last if delta else numbers

    return Codec(f"blosc2 {codec} {filter_name}{' delta' if delta else ''}".lower(), compress, decompress)


def _all() -> list[Codec]:
    there, found = set(PACKAGES) - set(missing_packages()), list[Codec]()
    if "zstandard" in there:
        found += [_plain("zstd 1", _zstd(1)), _by_planes("zstd 1", _zstd(1)), _by_planes("zstd 3", _zstd(3))]
        found += [_top("zstd 1", _zstd(1), 1), _top("zstd 1", _zstd(1), 2)]
    if "lz4" in there:
        found += [_plain("lz4", _lz4()), _by_planes("lz4", _lz4())]
    if "isal" in there:
        found += [_plain("igzip 1", _igzip(1)), _by_planes("igzip 1", _igzip(1)), _top("igzip 0", _igzip(0), 1)]
    if "zlib_ng" in there:
        found += [_by_planes("zlib-ng 1", _zlib_ng(1))]
    if "blosc2" in there:
        found += [_blosc("LZ4", "SHUFFLE"), _blosc("ZSTD", "SHUFFLE"), _blosc("ZSTD", "BITSHUFFLE")]
        found += [_blosc("LZ4", "BITSHUFFLE"), _blosc("ZSTD", "SHUFFLE", delta=True)]
        found += [_blosc("ZSTD", "BITSHUFFLE", delta=True)]
    return found


CODECS = _all()
