"""Errors that the NVIDIA driver wrote to the kernel's log, in the last day."""

from __future__ import annotations

import re
import time
from pathlib import Path

from deadpool.host.health.kernel_log import XID_LINE, XIDS_OF_HARDWARE, all_lines

_LOG = Path("/dev/kmsg")
_RECORD = re.compile(r"\d+,\d+,(?P<microseconds>\d+),")
_RECENT_S = 24 * 3600.0


def recent_xids() -> list[str]:
    """In words, one for each device and number."""
    since = time.clock_gettime(time.CLOCK_BOOTTIME) - _RECENT_S
    found = {}
    for record in all_lines(_LOG):
        match, head = XID_LINE.search(record), _RECORD.match(record)
        number = int(match["number"]) if match else 0
        if match and number in XIDS_OF_HARDWARE and (head is None or int(head["microseconds"]) / 1e6 >= since):
            found[match["device"], number] = f"Xid {number} of {match['device']}: {XIDS_OF_HARDWARE[number]}"
    return list(found.values())
