"""Host memory for snapshots. The agent owns it, so it outlives any trainer; trainers attach by a passed descriptor.

A Segment is one memfd cut into equal slots and sealed against truncation: no peer can shrink it under a mapping and
turn a read into SIGBUS. An Arena is the agent's collection of segments. Neither knows what a slot's state is: that is
the protocol's business.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from deadpool.errors import ArenaError
from deadpool.protocol.seal import Geometry

ArenaKey = tuple[str, int]
"""What a segment is for: ("own", rank) or ("held", rank)."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MADV_POPULATE_WRITE = 23
_PREFAULT_STRIDE_BYTES = 256 << 20
_PREFAULT_THREADS = 8  # one clears 1 to 2 GB/s
_libc = ctypes.CDLL(None, use_errno=True)


class Segment:
    """`count` slots of one geometry in one memfd."""

    def __init__(self, fd: int, geometry: Geometry, count: int) -> None:
        self.geometry = geometry
        self.count = count
        self.total_bytes = geometry.slot_bytes * count
        self._fd = fd
        self._map = mmap.mmap(fd, self.total_bytes)
        self._closing = threading.Lock()

    @classmethod
    def create(cls, name: str, geometry: Geometry, count: int) -> Segment:
        """A new segment. Its memory is promised here and taken by prefault()."""
        total_bytes = geometry.slot_bytes * count
        _require_available(total_bytes)
        fd = os.memfd_create(f"deadpool-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, total_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, geometry, count)
        except (OSError, ValueError, OverflowError) as error:
            os.close(fd)
            raise _no_memory(total_bytes, str(error)) from error

    @classmethod
    def attach(cls, fd: int, geometry: Geometry, count: int) -> Segment:
        """Map a segment that came over a socket. Takes the descriptor over: close() closes it."""
        expected, actual = geometry.slot_bytes * count, os.fstat(fd).st_size
        if actual != expected:
            raise ArenaError(f"segment has {actual} bytes where {count} slots need {expected}")
        return cls(fd, geometry, count)

    @property
    def fd(self) -> int:
        return self._fd

    def offset(self, index: int) -> int:
        """Where a slot starts in the memfd."""
        if not 0 <= index < self.count:
            raise ArenaError(f"slot {index} of {self.count}")
        return index * self.geometry.slot_bytes

    def slot(self, index: int) -> memoryview:
        start = self.offset(index)
        return memoryview(self._map)[start : start + self.geometry.slot_bytes]

    def view(self) -> memoryview:
        """The whole segment, e.g. to register it with a device."""
        return memoryview(self._map)

    def prefault(self, slots: range | None = None) -> None:
        """Back every page with memory now (first writes into cold pages are ten times slower). Gives up the GIL, and
        stops where the segment is closed meanwhile."""
        wanted = range(self.count) if slots is None else slots
        first, end = wanted.start * self.geometry.slot_bytes, wanted.stop * self.geometry.slot_bytes
        starts = range(first, end, _PREFAULT_STRIDE_BYTES)
        with ThreadPoolExecutor(min(_PREFAULT_THREADS, os.cpu_count() or 1), "prefault") as threads:
            list(threads.map(lambda start: self._prefault(start, min(start + _PREFAULT_STRIDE_BYTES, end)), starts))

    def _prefault(self, start: int, end: int) -> None:
        with self._closing:
            if self._fd < 0:
                return
            whole = memoryview(self._map)
        with whole, whole[start:end] as stride:
            _populate(stride, self.total_bytes)

    def close(self) -> None:
        """Close the descriptor and unmap. A slot still in someone's hands keeps the mapping until it is let go."""
        with self._closing:
            if self._fd < 0:
                return
            os.close(self._fd)
            self._fd = -1
        try:
            self._map.close()
        except BufferError:
            # Never unmap under a reader: the mapping ends with the last memoryview.
            del self._map


class Arena:
    """The agent's segments by key. Safe to use from several threads."""

    def __init__(self) -> None:
        self._segments: dict[ArenaKey, Segment] = {}
        self._lock = threading.Lock()

    def create(self, key: ArenaKey, geometry: Geometry, count: int) -> Segment:
        with self._lock:
            if key in self._segments:
                raise ArenaError(f"segment {key} exists already")
            segment = Segment.create(f"{key[0]}-{key[1]}", geometry, count)
            self._segments[key] = segment
            return segment

    def get(self, key: ArenaKey) -> Segment | None:
        with self._lock:
            return self._segments.get(key)

    def keys(self) -> tuple[ArenaKey, ...]:
        with self._lock:
            return tuple(sorted(self._segments))

    @property
    def bytes_in_use(self) -> int:
        with self._lock:
            return sum(segment.total_bytes for segment in self._segments.values())

    def drop(self, key: ArenaKey) -> None:
        """Give a segment's memory back. Only once no transfer reads or writes it."""
        with self._lock:
            segment = self._segments.pop(key, None)
        if segment is not None:
            segment.close()

    def close(self) -> None:
        for key in self.keys():
            self.drop(key)


def available_bytes() -> int:
    """What this process may still take: the machine's free memory, or its cgroup's where that is less."""
    figures = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(figures["MemAvailable"].split()[0]) * 1024
    limit = _cgroup_room_bytes()
    return available if limit is None else min(available, limit)


def _cgroup_room_bytes() -> int | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
        folder = Path("/sys/fs/cgroup") / path.lstrip("/")
        limit, used = (folder / "memory.max").read_text().strip(), (folder / "memory.current").read_text()
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, StopIteration, ValueError):
        return None


def _require_available(total_bytes: int) -> None:
    # A memfd overcommits: without this look the answer to too large a request is the OOM killer, not an error.
    available = available_bytes()
    if total_bytes > available:
        raise _no_memory(total_bytes, f"{available / 2**30:.2f} GiB are available")


def _no_memory(total_bytes: int, cause: str) -> ArenaError:
    return ArenaError(
        f"cannot have {total_bytes / 2**30:.2f} GiB of host memory for snapshots ({cause}); use fewer slots, "
        "raise the memory limit of this node or container, or spread the job over more nodes"
    )


def _populate(stride: memoryview, total_bytes: int) -> None:
    # ctypes and not mmap.madvise: the latter holds the GIL, for seconds per 10 GiB.
    address = np.frombuffer(stride, dtype=np.uint8).ctypes.data
    if _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(len(stride)), _MADV_POPULATE_WRITE) == 0:
        return
    code = ctypes.get_errno()
    if code != errno.EINVAL:  # EINVAL: a kernel before 5.14; then pages come on first use, slower but sound
        raise _no_memory(total_bytes, os.strerror(code))
