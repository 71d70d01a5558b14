"""Root may read and write every file. Tests of permissions give that up for a while."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

_VERSION = 0x20080522
_OVERRIDES = (1 << 1) | (1 << 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Half(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextlib.contextmanager
def no_overrides() -> Iterator[None]:
    """Of this thread. For who is not root nothing changes."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, halves = _Header(_VERSION, 0), (_Half * 2)()
    assert libc.capget(ctypes.byref(header), halves) == 0
    before = halves[0].effective
    halves[0].effective = before & ~_OVERRIDES
    assert libc.capset(ctypes.byref(header), halves) == 0
    try:
        yield
    finally:
        halves[0].effective = before
        assert libc.capset(ctypes.byref(header), halves) == 0
