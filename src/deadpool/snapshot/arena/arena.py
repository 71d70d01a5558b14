"""Host memory for snapshots. The agent owns it, so that it outlives any trainer; trainers get a descriptor and map it.

A Segment is one memfd that is divided into equal slots and sealed against truncation, so that no peer can shrink it
under a mapping and turn a read into SIGBUS. An Arena is the agent's collection of segments. Neither of them knows what
a slot contains: the protocol decides that.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from deadpool.errors import ArenaError
from deadpool.host import host_memory
from deadpool.protocol.seal import Geometry

ArenaKey = tuple[str, int]
"""Names the use of a segment: ("own", rank) or ("held", rank)."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MADV_POPULATE_WRITE = 23
_PREFAULT_STRIDE_BYTES = 256 << 20
_PREFAULT_THREADS = 8  # one thread clears 1 to 2 GB/s
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
        """Makes a new segment. This only reserves its memory; prefault() takes it."""
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
        """Maps a segment whose descriptor came over a socket. The segment owns the descriptor: close() closes it."""
        expected, actual = geometry.slot_bytes * count, os.fstat(fd).st_size
        if actual != expected:
            raise ArenaError(f"the segment has {actual} bytes, but {count} slots need {expected}")
        return cls(fd, geometry, count)

    @property
    def fd(self) -> int:
        return self._fd

    def offset(self, index: int) -> int:
        """Returns where a slot starts in the memfd."""
        if not 0 <= index < self.count:
            raise ArenaError(f"there is no slot {index}: the segment has {self.count} slots")
        return index * self.geometry.slot_bytes

    def slot(self, index: int) -> memoryview:
        start = self.offset(index)
        return memoryview(self._map)[start : start + self.geometry.slot_bytes]

    def view(self) -> memoryview:
        """Returns the memory of the whole segment, for example to register it with a device."""
        return memoryview(self._map)

    def prefault(self, slots: range | None = None) -> None:
        """Backs every page with memory now, because first writes into cold pages are ten times slower. It gives up the
        GIL, and stops if the segment is closed meanwhile."""
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
        """Closes the descriptor and unmaps the memory. If a slot is still in use, the mapping stays until it is not."""
        with self._closing:
            if self._fd < 0:
                return
            os.close(self._fd)
            self._fd = -1
        try:
            self._map.close()
        except BufferError:
            # A reader is never unmapped: the mapping ends with the last memoryview.
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
        """Frees a segment. No transfer may read or write it any more."""
        with self._lock:
            segment = self._segments.pop(key, None)
        if segment is not None:
            segment.close()

    def close(self) -> None:
        for key in self.keys():
            self.drop(key)


def _require_available(total_bytes: int) -> None:
    # A memfd overcommits: without this check a request that is too large would end in the OOM killer, not in an error.
    room = host_memory.room()
    if total_bytes > room.bytes:
        raise _no_memory(total_bytes, f"{room.bytes / 2**30:.2f} GiB are available by {room.limited_by}")


def _no_memory(total_bytes: int, cause: str) -> ArenaError:
    return ArenaError(
        f"cannot allocate {total_bytes / 2**30:.2f} GiB of host memory for snapshots ({cause}); use fewer slots, "
        "raise the memory limit of this node or container, or spread the job over more nodes"
    )


def _populate(stride: memoryview, total_bytes: int) -> None:
    # mmap.madvise would hold the GIL, for seconds per 10 GiB; a call through ctypes does not.
    address = np.frombuffer(stride, dtype=np.uint8).ctypes.data
    if _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(len(stride)), _MADV_POPULATE_WRITE) == 0:
        return
    code = ctypes.get_errno()
    if code != errno.EINVAL:  # EINVAL means a kernel before 5.14; there pages come on first use, which is only slower
        raise _no_memory(total_bytes, os.strerror(code))
