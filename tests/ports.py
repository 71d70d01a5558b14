"""Ports for tests that have to name one before anybody listens there.

A port that was free a moment ago may be taken: any connection gets one of the kernel's range for those. So these lie
outside of that range, and each is reserved by a name that only one process at a time can have.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _ENOUGH = 10_000, 1_000
_chance = random.SystemRandom()


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """No other test is given it before this ends."""
    with socket.socket(socket.AF_UNIX) as reservation:
        yield _reserve(reservation)


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    with contextlib.ExitStack() as all_of_them:
        yield [all_of_them.enter_context(reserved_port()) for _ in range(count)]


def _reserve(reservation: socket.socket) -> int:
    """By an abstract name, which ends with its process. Like a port it is known in one network namespace."""
    while True:
        port = _chance.randrange(_LOWEST, _end_of_quiet_ports())
        # Where it is reserved, or some service of this machine listens there, another one is tried.
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            reservation.bind(f"\0deadpool-test-port-{port}")
            return port


def _end_of_quiet_ports() -> int:
    try:
        first = int(_RANGE.read_text().split()[0])
    except OSError:
        first = 0
    return first if first >= _LOWEST + _ENOUGH else 1 << 16
