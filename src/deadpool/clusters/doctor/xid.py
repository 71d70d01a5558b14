"""Errors that the NVIDIA driver wrote to the kernel's log. Only root may read it, in most containers nobody."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

_LOG = Path("/dev/kmsg")
_LINE = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<number>\d+)")
_RECORD = re.compile(r"\d+,\d+,(?P<microseconds>\d+),")
_RECENT_S = 24 * 3600.0
_RECORD_BYTES = 8192

OF_HARDWARE = {
    48: "a double-bit ECC error",
    62: "a halt of its controller",
    64: "a row that could not be remapped",
    74: "an NVLink error",
    79: "that it has fallen off the bus",
    92: "a high rate of ECC errors",
    94: "a contained ECC error",
    95: "an uncontained ECC error",
    119: "a time-out of its system processor",
    120: "an error of its system processor",
    121: "a C2C link error",
    140: "an unrecovered ECC error",
}
"""Others (13, 31, 43, 45) come from a fault of a program as well, and say nothing about the GPU."""


def recent_xids() -> list[str]:
    """In words, one for each device and number, of the last day."""
    since = time.clock_gettime(time.CLOCK_BOOTTIME) - _RECENT_S
    found = {}
    for record in _records():
        match, head = _LINE.search(record), _RECORD.match(record)
        number = int(match["number"]) if match else 0
        if match and number in OF_HARDWARE and (head is None or int(head["microseconds"]) / 1e6 >= since):
            found[match["device"], number] = f"Xid {number} of {match['device']}: {OF_HARDWARE[number]}"
    return list(found.values())


def _records() -> list[str]:
    data = b""
    with contextlib.suppress(OSError):
        descriptor = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while chunk := _read(descriptor):
                data += chunk
        finally:
            os.close(descriptor)
    return data.decode(errors="replace").splitlines()


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            return b""  # the end of what is there
        except BrokenPipeError:
            continue  # records were overwritten while we read: the next read goes on after them
