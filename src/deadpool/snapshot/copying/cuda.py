"""Calls the CUDA runtime that torch has loaded: registers memory, and issues many copies with one call.

ctypes gives up the GIL for each call. If the runtime cannot be found in the process, nothing can be captured, and each
version is missed with that reason.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.errors import DeviceError

_HOST_REGISTER_PORTABLE = 1
_MEMCPY_DEFAULT = 4  # the runtime finds the direction from the addresses
_BATCH_SINCE = 13000  # older versions of cudaMemcpyBatchAsync took other arguments
_ORDER_STREAM = 1
_PREFER_OVERLAP_WITH_COMPUTE = 1
_CAPTURE_MODE_RELAXED = 2


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("id", ctypes.c_int))


class _CopyAttributes(ctypes.Structure):
    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source", _Location),
        ("destination", _Location),
        ("flags", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Addresses:
    """The addresses of copies in the form that the runtime takes: prepared once, issued in either direction."""

    registered: bool
    host: ctypes.Array[Any]
    device: ctypes.Array[Any]
    sizes: ctypes.Array[Any]

    @classmethod
    def of(cls, moves: Sequence[tuple[int, int, int]], *, registered: bool) -> Addresses:
        """Each move is (host address, device address, bytes)."""
        count = len(moves)
        hosts, devices, sizes = zip(*moves, strict=True) if moves else ((), (), ())
        return cls(
            registered,
            (ctypes.c_void_p * count)(*hosts),
            (ctypes.c_void_p * count)(*devices),
            (ctypes.c_size_t * count)(*sizes),
        )

    def __len__(self) -> int:
        return len(self.sizes)


class Runtime:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.cudaGetErrorString.restype = ctypes.c_char_p
        self._issue_batch = getattr(library, "cudaMemcpyBatchAsync", None) if self.version >= _BATCH_SINCE else None
        self._attributes = _CopyAttributes(source_access_order=_ORDER_STREAM, flags=_PREFER_OVERLAP_WITH_COMPUTE)
        self._first = ctypes.c_size_t(0)

    @property
    def version(self) -> int:
        number = ctypes.c_int(0)
        self._check(self._library.cudaRuntimeGetVersion(ctypes.byref(number)), "cudaRuntimeGetVersion")
        return number.value

    def register(self, address: int, size: int) -> None:
        """Page-locks memory for all devices. This takes tens of milliseconds per GiB."""
        code = self._library.cudaHostRegister(
            ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_uint(_HOST_REGISTER_PORTABLE)
        )
        self._check(code, "cudaHostRegister")

    def unregister(self, address: int) -> None:
        self._check(self._library.cudaHostUnregister(ctypes.c_void_p(address)), "cudaHostUnregister")

    def relax_capture_mode(self) -> None:
        """Lets calls of this thread, from now on, leave alone a graph that another thread captures."""
        mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
        code = self._library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        self._check(code, "cudaThreadExchangeStreamCaptureMode")

    def issue(self, addresses: Addresses, stream: int, *, to_host: bool) -> None:
        """Enqueues all copies on a stream of the current device, in any order; it must not be the default stream. If
        the host's memory is not registered, the call may last as long as the copy."""
        targets, sources = (addresses.host, addresses.device) if to_host else (addresses.device, addresses.host)
        if self._issue_batch is not None and addresses.registered and len(addresses) > 1:
            self._issue_together(targets, sources, addresses.sizes, stream)
            return
        for target, source, size in zip(targets, sources, addresses.sizes, strict=True):
            code = self._library.cudaMemcpyAsync(
                ctypes.c_void_p(target),
                ctypes.c_void_p(source),
                ctypes.c_size_t(size),
                ctypes.c_int(_MEMCPY_DEFAULT),
                ctypes.c_void_p(stream),
            )
            self._check(code, "cudaMemcpyAsync")

    def _issue_together(
        self, targets: ctypes.Array[Any], sources: ctypes.Array[Any], sizes: ctypes.Array[Any], stream: int
    ) -> None:
        assert self._issue_batch is not None
        code = self._issue_batch(
            targets,
            sources,
            sizes,
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(self._attributes),
            ctypes.byref(self._first),
            ctypes.c_size_t(1),
            ctypes.c_void_p(stream),
        )
        self._check(code, "cudaMemcpyBatchAsync")

    def _check(self, code: int, call: str) -> None:
        if code != 0:
            text = self._library.cudaGetErrorString(ctypes.c_int(code))
            self._library.cudaGetLastError()  # clears the error, so that the script's next call does not report it
            raise DeviceError(f"{call}: {text.decode() if text else 'unknown error'} ({code})")


@functools.cache
def runtime() -> Runtime | None:
    """Returns the runtime of this process, or None. Call it once CUDA is in use: torch has loaded the runtime then."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.rpartition(" ")[2]
        if "/libcudart" in path:
            return Runtime(ctypes.CDLL(path))
    return None
