"""Keeps writes below a bandwidth, and counts and checksums what was written."""

from __future__ import annotations

import time
from typing import BinaryIO

import xxhash

CHUNK_BYTES = 1 << 20


class RateLimit:
    """Limits the rate of one process. A rate of 0 means no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()

    def spend(self, count: int) -> None:
        if self._bytes_per_s <= 0:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + count / self._bytes_per_s
        if self._free_at > now:
            time.sleep(self._free_at - now)


def facts_of(data: bytes) -> tuple[int, str]:
    """Size and checksum, as CheckedWriter finds them."""
    return len(data), xxhash.xxh3_64_hexdigest(data)


class CheckedWriter:
    def __init__(self, file: BinaryIO, limit: RateLimit) -> None:
        self._file, self._limit = file, limit
        self._hasher = xxhash.xxh3_64()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            chunk = view[start : start + CHUNK_BYTES]
            self._limit.spend(len(chunk))
            self._file.write(chunk)
            self._hasher.update(chunk)
            self.size += len(chunk)

    @property
    def facts(self) -> tuple[int, str]:
        return self.size, self._hasher.hexdigest()
