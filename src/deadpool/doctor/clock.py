"""This node's clock: whether the kernel says that something keeps it right. How far it is off, only others can tell."""

from __future__ import annotations

import ctypes
import time

from deadpool.doctor.finding import Facts, Finding, note

MOST_APART_S = 0.5
"""Events of all nodes are put in order by their clocks, and a recovery takes about a second."""

_STA_UNSYNC = 0x0040
_BUFFER_LONGS = 32  # more than struct timex has
_STATUS_OFFSET = 40  # on 64-bit machines: modes, offset, freq, maxerror, esterror, then status


def check_clock() -> tuple[Facts, list[Finding]]:
    facts: Facts = {"clock_synchronized": _is_synchronized()}
    if facts["clock_synchronized"] is False:
        do = "run chrony or systemd-timesyncd, unless the clock is kept right from outside (a virtual machine)"
        return facts, [note("clock", "the kernel does not know of anything that keeps this clock right", do)]
    return facts, []


def _is_synchronized() -> bool | None:
    """None: the kernel does not say."""
    buffer = (ctypes.c_long * _BUFFER_LONGS)()
    if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).adjtimex(buffer) < 0:
        return None
    status = ctypes.c_int.from_buffer(buffer, _STATUS_OFFSET).value
    return not status & _STA_UNSYNC


def offset_s(sent: float, arrived: float, left: float, received: float) -> tuple[float, float]:
    """How far a peer's clock is ahead, and how wrong that may be: as NTP does it. `sent` and `received` are ours."""
    return ((arrived - sent) + (left - received)) / 2, ((received - sent) - (left - arrived)) / 2


def apart(node: str, ahead_s: float, error_s: float, of_whom: str) -> list[Finding]:
    if abs(ahead_s) - max(0.0, error_s) <= MOST_APART_S:
        return []
    word = "ahead of" if ahead_s > 0 else "behind"
    what = f"its clock is {abs(ahead_s):.2f} s {word} that of {of_whom}"
    do = (
        "set it right (chronyc makestep, timedatectl set-ntp true): events of a recovery would be told in a wrong order"
    )
    return [Finding(check="clock", node=node, what=what, do=do)]


def now() -> float:
    return time.time()
