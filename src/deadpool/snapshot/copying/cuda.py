"""What is asked of the CUDA runtime, and memory into which a capture is cloned.

`Addresses` and `Runtime` call the CUDA runtime that torch has loaded: registers memory, and issues many copies with
one call.

ctypes gives up the GIL for each call. If the runtime cannot be found in the process, nothing can be captured, and
each version is missed with that reason.

`Clones` and `Aside`: Device memory into which a capture is cloned as far as it was not copied to the host when the
optimizer begins.

One capture at a time uses it: the lane asks whether the last one has ended. The memory is taken when it is first
needed and grows to what was needed most, never beyond the limit that the user has set, and never so far that less
than a twentieth of the device's memory stays free. Only the main thread uses it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

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


_STEP_BYTES = 64 << 20
"""The memory grows in such steps, so that it does not grow again for every slightly longer rest."""

_ALIGNED_BYTES = 512
"""Where each piece begins. Copies between odd addresses are slow."""

_FREE_SHARE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Clones:
    """The copies of one batch: from live memory into the clones, and from there to the host.

    It keeps the memory alive that the addresses name: the lane may have let go of it.
    """

    memory: Tensor
    clone: list[Addresses]
    store: list[Addresses]
    strided: list[tuple[Tensor, Tensor]]  # (clone, live)


class Aside:
    def __init__(self, device: torch.device, limit_bytes: int) -> None:
        self._device, self._limit_bytes = device, limit_bytes
        self._memory: Tensor | None = None
        self._most: int | None = None  # how large the memory may become; None: not known yet

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else self._memory.nbytes

    def room(self) -> int:
        if self._limit_bytes <= 0:
            return 0
        if self._most is None:
            free, total = torch.cuda.mem_get_info(self._device)
            self._most = min(self._limit_bytes, self.nbytes + max(0, free - int(_FREE_SHARE * total)))
        return self._most

    def release(self) -> None:
        """Lets go of the memory. Clones that are still copied keep it."""
        self._memory, self._most = None, None

    def take(self, nbytes: int) -> Tensor:
        """Returns memory for so many bytes, for work on the current stream. Raises DeviceError if there is none."""
        if self.nbytes < nbytes:
            self._memory = None
            rounded = -(-nbytes // _STEP_BYTES) * _STEP_BYTES
            wanted = min(rounded, max(nbytes, self._limit_bytes))
            try:
                self._memory = torch.empty(wanted, dtype=torch.uint8, device=self._device)
            except torch.OutOfMemoryError as error:
                self._most = 0  # until other tensors are captured
                raise DeviceError(f"no device memory to set {nbytes} bytes of a snapshot aside: {error}") from error
        assert self._memory is not None
        return self._memory


def aside_bytes(turns: Sequence[Addresses], strided: Sequence[tuple[Tensor, Tensor]]) -> int:
    """Returns how much memory the clones of one batch take."""
    sizes = sum(int(_aligned(_numbers(addresses.sizes)).sum()) for addresses in turns)
    return sizes + sum(int(_aligned(np.array([live.nbytes]))[0]) for _, live in strided)


def place_clones(
    turns: Sequence[Addresses], strided: Sequence[tuple[Tensor, Tensor]], memory: Tensor, start: int
) -> Clones:
    """Places the clones of one batch in the memory, from `start` on."""
    clones = Clones(memory, [], [], [])
    for addresses in turns:
        sizes = _aligned(_numbers(addresses.sizes))
        places = memory.data_ptr() + start + np.cumsum(sizes) - sizes
        start += int(sizes.sum())
        at = _pointers(places)
        # Copies within a device go one by one: the call for many of them is for copies beside computation.
        clones.clone.append(Addresses(False, at, addresses.device, addresses.sizes))
        clones.store.append(Addresses(addresses.registered, addresses.host, at, addresses.sizes))
    for stored, live in strided:
        clone = memory[start : start + live.nbytes].view(live.dtype).view(live.shape)
        start += int(_aligned(np.array([live.nbytes]))[0])
        clones.strided.append((clone, live))
        move = (stored.data_ptr(), clone.data_ptr(), live.nbytes)
        clones.store.append(Addresses.of([move], registered=stored.is_pinned()))
    return clones


def _numbers(array: ctypes.Array[Any]) -> np.ndarray:
    return np.array(list(array), np.int64)


def _aligned(sizes: np.ndarray) -> np.ndarray:
    return -(-sizes // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _pointers(places: np.ndarray) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * len(places)).from_buffer(bytearray(places.astype(np.uint64).tobytes()))
